import io.dapr.actors.ActorId;
import io.dapr.actors.client.ActorClient;
import io.dapr.actors.client.ActorProxyBuilder;

/** Increments the counter `visits` three times. */
public class Client {
  public static void main(String[] args) {
    try (var client = new ActorClient()) {
      var counter = new ActorProxyBuilder<>(Counter.class, client).build(new ActorId("visits"));
      for (int call = 0; call < 3; call++) {
        System.out.println("counter visits: " + counter.increment(1));
      }
    }
  }
}
