import io.dapr.client.DaprClientBuilder;
import io.dapr.client.domain.HttpExtension;
import java.util.Map;

/** Calls the method `greet` of the app `service`, through both sidecars. */
public class Caller {
  public static void main(String[] args) throws Exception {
    try (var dapr = new DaprClientBuilder().build()) {
      var answer = dapr.invokeMethod("service", "greet", Map.of("name", "Ada"), HttpExtension.POST, Map.class).block();
      System.out.println("the service answered: " + answer.get("text"));
    }
    // The SDK's HTTP client leaves threads that keep the process alive.
    System.exit(0);
  }
}
