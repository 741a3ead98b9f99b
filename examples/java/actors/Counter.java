import io.dapr.actors.ActorType;

/** The interface of the actor type `Counter`, for its service and its clients. */
@ActorType(name = "Counter")
public interface Counter {
  int increment(int by);
}
