import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.dapr.actors.runtime.ActorRuntime;
import io.dapr.client.domain.CloudEvent;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Executors;

/** The app: topics, jobs and actors. The SDK has the actors and envelopes; serving HTTP is left to frameworks, or us. */
public class App {
  private static final ObjectMapper JSON = new ObjectMapper();
  /** What came, by topic or job. */
  private static final Map<String, List<Object>> TAKEN = new ConcurrentHashMap<>();
  private static final List<Map<String, String>> SUBSCRIPTIONS = List.of(
      Map.of("pubsubname", "events", "topic", "ships", "route", "/events/ships", "deadLetterTopic", "dead"),
      Map.of("pubsubname", "events", "topic", "dead", "route", "/events/dead"),
      Map.of("pubsubname", "events", "topic", "tried", "route", "/events/tried"));

  /** Serves on a port of loopback. */
  static void serve(int port) throws Exception {
    // A JVM reports SIGTERM as a failure.
    Runtime.getRuntime().addShutdownHook(new Thread(() -> Runtime.getRuntime().halt(0)));
    ActorRuntime.getInstance().registerActor(ShipActor.class);
    var server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
    server.setExecutor(Executors.newCachedThreadPool());
    server.createContext("/", exchange -> {
      byte[] answer;
      int status = 200;
      try {
        answer = answer(exchange);
        if (answer == null) {
          status = 404;
        }
      } catch (Exception error) {
        status = 500;
        answer = String.valueOf(error).getBytes();
      }
      exchange.getResponseHeaders().set("content-type", "application/json");
      exchange.sendResponseHeaders(status, answer == null || answer.length == 0 ? -1 : answer.length);
      try (var body = exchange.getResponseBody()) {
        if (answer != null && answer.length > 0) {
          body.write(answer);
        }
      }
    });
    server.start();
  }

  /** The answer to a request; null where there is nothing. */
  private static byte[] answer(HttpExchange exchange) throws Exception {
    var path = exchange.getRequestURI().getPath().substring(1).split("/");
    var body = exchange.getRequestBody().readAllBytes();
    switch (path[0]) {
      case "healthz":
        return new byte[0];
      case "taken":
        return JSON.writeValueAsBytes(TAKEN);
      case "dapr":
        return path[1].equals("config") ? ActorRuntime.getInstance().serializeConfig() : JSON.writeValueAsBytes(SUBSCRIPTIONS);
      case "events":
        return event(path[1], CloudEvent.deserialize(body));
      case "job":
        if (keep(path[1], new String(body)) < 3 && path[1].equals("fails")) {
          throw new IllegalStateException("not yet");
        }
        return new byte[0];
      case "actors":
        return actor(exchange.getRequestMethod(), path, body);
      default:
        return null;
    }
  }

  private static byte[] event(String topic, CloudEvent<?> event) throws Exception {
    int count = keep(topic, Map.of("id", event.getId(), "type", event.getType(), "data", event.getData()));
    // The SDK publishes a string as JSON, with quotes.
    var status = event.getData().equals("\"poison\"") && topic.equals("ships") ? "DROP"
        : topic.equals("tried") && count < 3 ? "RETRY" : "SUCCESS";
    return JSON.writeValueAsBytes(Map.of("status", status));
  }

  private static int keep(String where, Object what) {
    var kept = TAKEN.computeIfAbsent(where, any -> new CopyOnWriteArrayList<>());
    kept.add(what);
    return kept.size();
  }

  private static byte[] actor(String verb, String[] path, byte[] body) {
    var runtime = ActorRuntime.getInstance();
    if (verb.equals("DELETE")) {
      runtime.deactivate(path[1], path[2]).block();
      return new byte[0];
    }
    if (path.length > 5) {
      (path[4].equals("timer") ? runtime.invokeTimer(path[1], path[2], path[5], body)
          : runtime.invokeReminder(path[1], path[2], path[5], body)).block();
      return new byte[0];
    }
    var answer = runtime.invoke(path[1], path[2], path[4], body).block();
    return answer == null ? new byte[0] : answer;
  }
}
