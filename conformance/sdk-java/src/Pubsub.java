import io.dapr.client.DaprClientBuilder;
import io.dapr.client.DaprPreviewClient;
import io.dapr.client.SubscriptionListener;
import io.dapr.client.domain.CloudEvent;
import io.dapr.client.domain.PublishEventRequest;
import io.dapr.utils.TypeRef;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import reactor.core.publisher.Mono;

/** Publish and subscribe. Of the SDK's streams only the deprecated kind lets its listener answer. */
@SuppressWarnings("deprecation")
class Pubsub {
  private static final String BROKER = "events";

  private static final DaprPreviewClient PREVIEW = new DaprClientBuilder().buildPreviewClient();

  static final List<World.Check> CHECKS = List.of(
      new World.Check("pubsub", "the app receives events", Pubsub::published),
      new World.Check("pubsub", "an envelope of the publisher", Pubsub::envelope),
      new World.Check("pubsub", "dead letters", Pubsub::deadLetters),
      new World.Check("pubsub", "events are redelivered on retry", Pubsub::again),
      new World.Check("pubsub", "bulks", Pubsub::bulks),
      new World.Check("pubsub", "a stream", Pubsub::stream),
      new World.Check("pubsub", "errors", Pubsub::errors));

  private static void published() throws Exception {
    var key = UUID.randomUUID().toString();
    World.CLIENT.publishEvent(BROKER, "ships", Map.of("key", key)).block();
    var event = World.taken("ships", 1, one -> key.equals(one.at("/data/key").asText())).get(0);
    World.same("type", event.get("type").asText(), "com.dapr.event.sent");
  }

  private static void envelope() throws Exception {
    var id = UUID.randomUUID().toString();
    var event = new CloudEvent<>(id, "here", "boat", "1.0", "application/json", Map.of("n", 1));
    World.CLIENT.publishEvent(new PublishEventRequest(BROKER, "ships", event).setContentType(CloudEvent.CONTENT_TYPE)).block();
    var found = World.taken("ships", 1, one -> id.equals(one.get("id").asText()));
    World.same("type", found.get(0).get("type").asText(), "boat");
  }

  private static void deadLetters() throws Exception {
    World.CLIENT.publishEvent(new PublishEventRequest(BROKER, "ships", "poison").setContentType("text/plain")).block();
    World.taken("dead", 1, one -> one.get("data").asText().contains("poison"));
  }

  private static void again() throws Exception {
    World.CLIENT.publishEvent(BROKER, "tried", "once more").block();
    World.same("attempts", World.taken("tried", 3, one -> true).size(), 3);
  }

  private static void bulks() throws Exception {
    var key = UUID.randomUUID().toString();
    var events = IntStream.range(0, 100).mapToObj(number -> key + " " + number).toList();
    var answer = PREVIEW.publishEvents(BROKER, "ships", "text/plain", events).block();
    World.same("failed", answer.getFailedEntries().size(), 0);
    World.same("events", World.taken("ships", 100, one -> one.get("data").asText().contains(key)).size(), 100);
  }

  private static void stream() throws Exception {
    var seen = new LinkedBlockingQueue<String>();
    var listener = new SubscriptionListener<String>() {
      private int count;

      @Override
      public Mono<Status> onEvent(CloudEvent<String> event) {
        seen.add(event.getData());
        count += 1;
        return Mono.just(count < 3 ? Status.RETRY : Status.SUCCESS);
      }

      @Override
      public void onError(RuntimeException error) {
        seen.add(error.toString());
      }
    };
    try (var stream = PREVIEW.subscribeToEvents(BROKER, "streamed", listener, TypeRef.STRING)) {
      // The call returns before the subscription is confirmed.
      World.until("an event", () -> {
        World.CLIENT.publishEvent(BROKER, "streamed", "ahoy").block();
        return "ahoy".equals(seen.poll(200, TimeUnit.MILLISECONDS));
      });
      for (int attempt = 1; attempt < 3; attempt++) {
        World.same("again", seen.poll(World.TIMEOUT, TimeUnit.SECONDS), "ahoy");
      }
    }
  }

  private static void errors() {
    World.refused("an unknown broker", "pubsub nowhere is not found", () -> World.CLIENT.publishEvent("nowhere", "a", "x").block());
    World.refused("a protected topic", "topic secret is not allowed", () -> World.CLIENT.publishEvent(BROKER, "secret", "x").block());
  }
}
