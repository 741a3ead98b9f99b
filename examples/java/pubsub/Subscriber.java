import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.dapr.client.domain.CloudEvent;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.Map;

/** Receives the orders that are published on the topic `orders`. */
public class Subscriber {
  private static final ObjectMapper JSON = new ObjectMapper();

  private static void answer(HttpExchange exchange, Object value) throws IOException {
    var body = JSON.writeValueAsBytes(value);
    exchange.getResponseHeaders().set("content-type", "application/json");
    exchange.sendResponseHeaders(200, body.length);
    exchange.getResponseBody().write(body);
    exchange.close();
  }

  public static void main(String[] args) throws IOException {
    int port = Integer.parseInt(System.getenv("APP_PORT"));
    var server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
    // The sidecar asks the app for its subscriptions.
    server.createContext("/dapr/subscribe", exchange ->
        answer(exchange, List.of(Map.of("pubsubname", "pubsub", "topic", "orders", "route", "/orders"))));
    // Delivery is at least once: a handler that changes something must be idempotent.
    server.createContext("/orders", exchange -> {
      var event = CloudEvent.deserialize(exchange.getRequestBody().readAllBytes());
      System.out.println("received order " + ((Map<?, ?>) event.getData()).get("id"));
      answer(exchange, Map.of("status", "SUCCESS"));
    });
    server.start();
  }
}
