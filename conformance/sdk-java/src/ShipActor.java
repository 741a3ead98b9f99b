import io.dapr.actors.ActorId;
import io.dapr.actors.runtime.AbstractActor;
import io.dapr.actors.runtime.ActorRuntimeContext;
import io.dapr.actors.runtime.Remindable;
import io.dapr.utils.TypeRef;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import reactor.core.publisher.Mono;

/** The actor: its cargo is state, and it remembers what it has heard. */
public class ShipActor extends AbstractActor implements Ship, Remindable<String> {
  private static final Duration BRIEFLY = Duration.ofMillis(200);
  private final List<String> heard = new CopyOnWriteArrayList<>();

  public ShipActor(ActorRuntimeContext<ShipActor> context, ActorId id) {
    super(context, id);
  }

  /** Another turn between its two halves would be lost. */
  @Override
  public int load(int tons) {
    var state = getActorStateManager();
    int total = state.contains("tons").block() ? state.get("tons", Integer.class).block() : 0;
    Mono.delay(Duration.ofMillis(10)).block();
    total += tons;
    state.set("tons", total).block();
    return total;
  }

  @Override
  public void sink() {
    throw new IllegalStateException("the ship sinks");
  }

  @Override
  public void watch(boolean on) {
    if (on) {
      registerActorTimer("watch", "tick", "bell", BRIEFLY, BRIEFLY).block();
    } else {
      unregisterTimer("watch").block();
    }
  }

  @Override
  public void tick(String text) {
    heard.add("timer " + text);
  }

  @Override
  public void remind(boolean on) {
    if (on) {
      registerReminder("tide", "high", BRIEFLY, BRIEFLY).block();
    } else {
      unregisterReminder("tide").block();
    }
  }

  @Override
  public TypeRef<String> getStateType() {
    return TypeRef.STRING;
  }

  @Override
  public Mono<Void> receiveReminder(String name, String state, Duration due, Duration period) {
    heard.add("reminder " + name + " " + state);
    return Mono.empty();
  }

  @Override
  public String[] heard() {
    return heard.toArray(String[]::new);
  }
}
