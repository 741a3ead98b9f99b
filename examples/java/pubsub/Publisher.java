import io.dapr.client.DaprClientBuilder;
import java.util.Map;

/** Publishes three orders on the topic `orders`. */
public class Publisher {
  public static void main(String[] args) throws Exception {
    try (var dapr = new DaprClientBuilder().build()) {
      for (int number = 1; number <= 3; number++) {
        dapr.publishEvent("pubsub", "orders", Map.of("id", number)).block();
        System.out.println("published order " + number);
      }
    }
  }
}
