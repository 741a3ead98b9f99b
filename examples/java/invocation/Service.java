import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.Map;

/** A service that greets its callers over HTTP. */
public class Service {
  public static void main(String[] args) throws IOException {
    var json = new ObjectMapper();
    int port = Integer.parseInt(System.getenv("APP_PORT"));
    var server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
    server.createContext("/greet", exchange -> {
      var name = json.readTree(exchange.getRequestBody()).get("name").asText();
      System.out.println("greeting " + name);
      var answer = json.writeValueAsBytes(Map.of("text", "Hello, " + name + "!"));
      exchange.getResponseHeaders().set("content-type", "application/json");
      exchange.sendResponseHeaders(200, answer.length);
      exchange.getResponseBody().write(answer);
      exchange.close();
    });
    server.start();
  }
}
