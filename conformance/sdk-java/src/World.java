import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.dapr.client.DaprClient;
import io.dapr.client.DaprClientBuilder;
import io.dapr.client.DaprPreviewClient;
import io.dapr.client.domain.HttpExtension;
import io.dapr.config.Properties;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.function.Predicate;

/** What all blocks use: clients, waiting, comparing. */
class World {
  static final int TIMEOUT = 20;

  /** Something that an app does; what it throws tells what went wrong. */
  interface Body {
    void run() throws Exception;
  }

  record Check(String block, String name, Body body) {}

  /** Something that drive.py tells of the fleet. */
  static String setting(String name) {
    return Objects.requireNonNull(System.getenv("CHECK_" + name), "start this with conformance/sdk-java/run: CHECK_" + name);
  }

  /** A client of the caller's sidecar. */
  static final DaprClient CLIENT = new DaprClientBuilder().build();

  /** A client of the sidecar beside the app; jobs are part of this kind of client. */
  static DaprPreviewClient beside() {
    return new DaprClientBuilder().withPropertyOverride(Properties.GRPC_PORT, setting("APP_GRPC_PORT"))
        .withPropertyOverride(Properties.HTTP_PORT, setting("APP_HTTP_PORT")).buildPreviewClient();
  }

  static void same(String what, Object got, Object expected) {
    if (!Objects.equals(got, expected)) {
      throw new AssertionError(what + ": got " + got + ", expected " + expected);
    }
  }

  static void refused(String what, String words, Body body) {
    try {
      body.run();
    } catch (Exception error) {
      if (!String.valueOf(error.getMessage()).contains(words)) {
        throw new AssertionError(what + ": got " + error + ", expected: " + words, error);
      }
      return;
    }
    throw new AssertionError(what + ": went well, expected: " + words);
  }

  static void until(String what, Callable<Boolean> condition) throws Exception {
    long deadline = System.nanoTime() + TIMEOUT * 1_000_000_000L;
    while (!condition.call()) {
      if (System.nanoTime() > deadline) {
        throw new AssertionError("timed out waiting for: " + what);
      }
      Thread.sleep(50);
    }
  }

  /** What the app took of a topic or job, when there are so many that match. */
  static List<JsonNode> taken(String where, int count, Predicate<JsonNode> matching) throws Exception {
    var found = new ArrayList<JsonNode>();
    until(count + " of " + where, () -> {
      found.clear();
      byte[] all = CLIENT.invokeMethod(setting("APP"), "taken", null, HttpExtension.GET, byte[].class).block();
      for (var one : new ObjectMapper().readTree(all).path(where)) {
        if (matching.test(one)) {
          found.add(one);
        }
      }
      return found.size() >= count;
    });
    return found;
  }
}
