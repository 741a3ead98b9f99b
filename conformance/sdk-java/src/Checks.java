import java.util.ArrayList;
import java.util.List;

/**
 * What an app written with Dapr's Java SDK does, against the fleet that drive.py started.
 *
 * <p>usage: Checks [BLOCK]... makes the checks; the last line is 'N passed, N failed'. Checks app PORT is the app.
 */
public class Checks {
  public static void main(String[] arguments) throws Exception {
    if (arguments.length == 2 && arguments[0].equals("app")) {
      App.serve(Integer.parseInt(arguments[1]));
      return;
    }
    var names = List.of(arguments);
    var checks = new ArrayList<World.Check>();
    checks.addAll(Pubsub.CHECKS);
    checks.addAll(Jobs.CHECKS);
    checks.addAll(Actors.CHECKS);
    checks.addAll(Workflows.CHECKS);
    int passed = 0;
    int failed = 0;
    for (var check : checks) {
      if (!names.isEmpty() && !names.contains(check.block())) {
        continue;
      }
      try {
        check.body().run();
        passed += 1;
        System.out.println("ok      " + check.block() + ": " + check.name());
      } catch (Throwable error) {
        failed += 1;
        System.out.println("FAILED  " + check.block() + ": " + check.name() + ": " + error);
        error.printStackTrace(System.out);
      }
    }
    System.out.println(passed + " passed, " + failed + " failed");
    // Clients and workers leave threads running.
    System.exit(failed > 0 ? 1 : 0);
  }
}
