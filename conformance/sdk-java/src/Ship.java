import io.dapr.actors.ActorMethod;
import io.dapr.actors.ActorType;

/** What callers see of the actor that the app hosts. */
@ActorType(name = "Ship")
public interface Ship {
  /** Adds to its cargo; returns all of it. */
  int load(int tons);

  void sink();

  /** Switches a timer. */
  void watch(boolean on);

  /** What the timer calls: the SDK looks for it among the methods of interfaces. */
  void tick(String text);

  /** Switches a reminder. */
  void remind(boolean on);

  /** What it heard of both. */
  @ActorMethod(returns = String[].class)
  String[] heard();
}
