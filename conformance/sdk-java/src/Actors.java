import io.dapr.actors.ActorId;
import io.dapr.actors.client.ActorClient;
import io.dapr.actors.client.ActorProxyBuilder;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;
import java.util.function.BiConsumer;
import java.util.stream.IntStream;

/** Actors that the app hosts, called by way of another sidecar. */
class Actors {
  private static final ActorClient CLIENT = new ActorClient();

  static final List<World.Check> CHECKS = List.of(
      new World.Check("actors", "turns come one after another", Actors::turns),
      new World.Check("actors", "timers", () -> heard("timer bell", Ship::watch)),
      new World.Check("actors", "reminders", () -> heard("reminder tide high", Ship::remind)),
      new World.Check("actors", "errors", Actors::errors));

  private static Ship ship() {
    return new ActorProxyBuilder<>(Ship.class, CLIENT).build(new ActorId(UUID.randomUUID().toString()));
  }

  private static void turns() {
    var ship = ship();
    var totals = IntStream.range(0, 30).parallel().map(any -> ship.load(1)).sorted().boxed().toList();
    World.same("totals", totals, IntStream.rangeClosed(1, 30).boxed().toList());
  }

  /** It comes several times, until it is switched off. */
  private static void heard(String what, BiConsumer<Ship, Boolean> turn) throws Exception {
    var ship = ship();
    turn.accept(ship, true);
    World.until(what, () -> Arrays.stream(ship.heard()).filter(what::equals).count() >= 3);
    turn.accept(ship, false);
    int before = ship.heard().length;
    Thread.sleep(600);
    World.same("afterwards", ship.heard().length, before);
  }

  private static void errors() {
    World.refused("a turn that fails", "error from actor service", () -> ship().sink());
    var plane = new ActorProxyBuilder<>("Plane", Ship.class, CLIENT).build(new ActorId("x"));
    World.refused("an unknown type", "did not find address for actor", () -> plane.load(1));
  }
}
