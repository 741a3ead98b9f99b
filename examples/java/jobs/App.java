import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.net.httpserver.HttpServer;
import io.dapr.client.DaprClientBuilder;
import io.dapr.client.domain.ScheduleJobRequest;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.time.Instant;

/** Schedules a job and runs it when the scheduler triggers it. */
public class App {
  public static void main(String[] args) throws Exception {
    int port = Integer.parseInt(System.getenv("APP_PORT"));
    var server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
    server.createContext("/job/reminder", exchange -> {
      var task = new ObjectMapper().readTree(exchange.getRequestBody()).get("task").asText();
      System.out.println("job reminder: " + task);
      exchange.sendResponseHeaders(200, -1);
      exchange.close();
    });
    server.start();

    try (var dapr = new DaprClientBuilder().build(); var jobs = new DaprClientBuilder().buildPreviewClient()) {
      dapr.waitForSidecar(30_000).block();
      var data = "{\"task\": \"water the plants\"}".getBytes();
      var job = new ScheduleJobRequest("reminder", Instant.now().plusSeconds(1)).setData(data).setOverwrite(true);
      jobs.scheduleJob(job).block();
      System.out.println("scheduled the job reminder");
    }
  }
}
