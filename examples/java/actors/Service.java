import com.sun.net.httpserver.HttpServer;
import io.dapr.actors.runtime.ActorRuntime;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import reactor.core.publisher.Mono;

/** Hosts actors of the type `Counter`: passes the sidecar's requests to the SDK's runtime. */
public class Service {
  private static final ActorRuntime RUNTIME = ActorRuntime.getInstance();

  /** The path is /actors/TYPE/ID, or /actors/TYPE/ID/method/NAME. */
  private static Mono<byte[]> answer(String verb, String[] path, byte[] body) {
    return verb.equals("DELETE")
        ? RUNTIME.deactivate(path[2], path[3]).thenReturn(new byte[0])
        : RUNTIME.invoke(path[2], path[3], path[5], body);
  }

  public static void main(String[] args) throws IOException {
    RUNTIME.registerActor(CounterActor.class);
    int port = Integer.parseInt(System.getenv("APP_PORT"));
    var server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
    server.setExecutor(Executors.newCachedThreadPool());
    server.createContext("/dapr/config", exchange -> {
      exchange.getResponseHeaders().set("content-type", "application/json");
      exchange.sendResponseHeaders(200, 0);
      exchange.getResponseBody().write(RUNTIME.serializeConfig());
      exchange.close();
    });
    server.createContext("/actors", exchange -> {
      var path = exchange.getRequestURI().getPath().split("/");
      var answer = answer(exchange.getRequestMethod(), path, exchange.getRequestBody().readAllBytes()).block();
      exchange.sendResponseHeaders(200, 0);
      exchange.getResponseBody().write(answer);
      exchange.close();
    });
    server.start();
  }
}
