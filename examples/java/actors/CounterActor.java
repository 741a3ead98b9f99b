import io.dapr.actors.ActorId;
import io.dapr.actors.runtime.AbstractActor;
import io.dapr.actors.runtime.ActorRuntimeContext;

/** Its count is in the state store. */
public class CounterActor extends AbstractActor implements Counter {
  public CounterActor(ActorRuntimeContext<CounterActor> context, ActorId id) {
    super(context, id);
  }

  /** Calls to one actor run one at a time, so no increment is lost. */
  @Override
  public int increment(int by) {
    var state = getActorStateManager();
    int count = by + (state.contains("count").block() ? state.get("count", Integer.class).block() : 0);
    state.set("count", count).block();
    System.out.println(getId() + " is incremented to " + count);
    return count;
  }
}
