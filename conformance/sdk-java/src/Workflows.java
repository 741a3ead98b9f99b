import io.dapr.durabletask.Task;
import io.dapr.durabletask.TaskCanceledException;
import io.dapr.workflows.Workflow;
import io.dapr.workflows.WorkflowActivity;
import io.dapr.workflows.WorkflowStub;
import io.dapr.workflows.WorkflowTaskOptions;
import io.dapr.workflows.WorkflowTaskRetryPolicy;
import io.dapr.workflows.client.DaprWorkflowClient;
import io.dapr.workflows.client.WorkflowInstanceStatus;
import io.dapr.workflows.client.WorkflowRuntimeStatus;
import io.dapr.workflows.runtime.WorkflowRuntimeBuilder;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.IntStream;

/** Workflows whose worker is this process. */
public class Workflows {
  private static final Duration TIMEOUT = Duration.ofSeconds(World.TIMEOUT);
  private static final Map<String, Integer> ATTEMPTS = new ConcurrentHashMap<>();
  private static DaprWorkflowClient client;

  static final List<World.Check> CHECKS = List.of(
      new World.Check("workflow", "a chain", () -> World.same("output", output(Chain.class, 5), "40")),
      new World.Check("workflow", "a fan-out", () -> World.same("output", output(Fan.class, 50), "2450")),
      new World.Check("workflow", "many at once", Workflows::many),
      new World.Check("workflow", "a timer", Workflows::timer),
      new World.Check("workflow", "events, and a timeout without one", Workflows::events),
      new World.Check("workflow", "a child", () -> World.same("output", output(Parent.class, 3), "24")),
      new World.Check("workflow", "pause, resume, terminate", Workflows::pause),
      new World.Check("workflow", "purge", Workflows::purge),
      new World.Check("workflow", "retries", Workflows::retries),
      new World.Check("workflow", "continue as new", Workflows::again),
      new World.Check("workflow", "errors", Workflows::errors));

  public static class Chain implements Workflow {
    @Override
    public WorkflowStub create() {
      return context -> {
        int number = context.getInput(Integer.class);
        for (int round = 0; round < 3; round++) {
          number = context.callActivity("double", number, Integer.class).await();
        }
        context.complete(number);
      };
    }
  }

  public static class Fan implements Workflow {
    @Override
    public WorkflowStub create() {
      return context -> {
        List<Task<Integer>> tasks = IntStream.range(0, context.getInput(Integer.class))
            .mapToObj(number -> context.callActivity("double", number, Integer.class)).toList();
        context.complete(context.allOf(tasks).await().stream().mapToInt(Integer::intValue).sum());
      };
    }
  }

  public static class Sleeper implements Workflow {
    @Override
    public WorkflowStub create() {
      return context -> {
        context.createTimer(Duration.ofSeconds(context.getInput(Integer.class))).await();
        context.complete("woken");
      };
    }
  }

  /** What it is told, or 'nothing' after some time. */
  public static class Asks implements Workflow {
    @Override
    public WorkflowStub create() {
      return context -> {
        String told;
        try {
          told = context.waitForExternalEvent("answer", Duration.ofSeconds(context.getInput(Integer.class)), String.class).await();
        } catch (TaskCanceledException late) {
          told = "nothing";
        }
        context.complete(told);
      };
    }
  }

  public static class Parent implements Workflow {
    @Override
    public WorkflowStub create() {
      return context -> context.complete(
          context.callChildWorkflow(Chain.class.getCanonicalName(), context.getInput(Integer.class), Integer.class).await());
    }
  }

  public static class Patient implements Workflow {
    @Override
    public WorkflowStub create() {
      return context -> {
        var policy = WorkflowTaskRetryPolicy.newBuilder().setMaxNumberOfAttempts(3)
            .setFirstRetryInterval(Duration.ofMillis(50)).setBackoffCoefficient(1).build();
        var options = new WorkflowTaskOptions(policy);
        context.complete(context.callActivity("flaky", context.getInput(String.class), options, Integer.class).await());
      };
    }
  }

  /** Starts anew for as many rounds; events that came too early are kept. */
  public static class Again implements Workflow {
    @Override
    public WorkflowStub create() {
      return context -> {
        int rounds = context.getInput(Integer.class);
        if (rounds > 0) {
          context.continueAsNew(rounds - 1, true);
        } else {
          context.complete(context.waitForExternalEvent("answer", String.class).await());
        }
      };
    }
  }

  /** The client; the first call starts the worker. */
  private static synchronized DaprWorkflowClient client() {
    if (client == null) {
      WorkflowActivity twice = context -> 2 * context.getInput(Integer.class);
      WorkflowActivity flaky = context -> {
        var key = context.getInput(String.class);
        int attempt = ATTEMPTS.merge(key, 1, Integer::sum);
        if (attempt < 3 || key.startsWith("hopeless")) {
          throw new IllegalStateException("attempt " + attempt);
        }
        return attempt;
      };
      var builder = new WorkflowRuntimeBuilder().registerActivity("double", twice).registerActivity("flaky", flaky);
      for (var flow : List.of(new Chain(), new Fan(), new Sleeper(), new Asks(), new Parent(), new Patient(), new Again())) {
        builder.registerWorkflow(flow.getClass());
      }
      builder.build().start(false);
      client = new DaprWorkflowClient();
    }
    return client;
  }

  private static String start(Class<? extends Workflow> flow, Object input) {
    return client().scheduleNewWorkflow(flow, input, UUID.randomUUID().toString());
  }

  private static WorkflowInstanceStatus end(String id, WorkflowRuntimeStatus status) throws Exception {
    var state = client().waitForInstanceCompletion(id, TIMEOUT, true);
    World.same("status of " + id, state.getRuntimeStatus(), status);
    return state;
  }

  private static String output(Class<? extends Workflow> flow, Object input) throws Exception {
    return end(start(flow, input), WorkflowRuntimeStatus.COMPLETED).getSerializedOutput();
  }

  private static void until(String id, WorkflowRuntimeStatus status) throws Exception {
    World.until(status.name(), () -> client().getInstanceState(id, false).getRuntimeStatus() == status);
  }

  private static void many() throws Exception {
    var ids = IntStream.range(0, 30).mapToObj(number -> start(Chain.class, number)).toList();
    for (int number = 0; number < 30; number++) {
      var state = end(ids.get(number), WorkflowRuntimeStatus.COMPLETED);
      World.same("output", state.readOutputAs(Integer.class), 8 * number);
    }
  }

  private static void timer() throws Exception {
    long before = System.nanoTime();
    World.same("output", output(Sleeper.class, 1), "\"woken\"");
    World.same("slept", System.nanoTime() - before >= 1_000_000_000L, true);
  }

  private static void events() throws Exception {
    var id = start(Asks.class, 600);
    client().raiseEvent(id, "answer", "yes");
    World.same("output", end(id, WorkflowRuntimeStatus.COMPLETED).getSerializedOutput(), "\"yes\"");
    World.same("output", output(Asks.class, 1), "\"nothing\"");
  }

  private static void pause() throws Exception {
    var id = start(Asks.class, 600);
    client().suspendWorkflow(id, "tired");
    until(id, WorkflowRuntimeStatus.SUSPENDED);
    client().resumeWorkflow(id, "rested");
    until(id, WorkflowRuntimeStatus.RUNNING);
    client().terminateWorkflow(id, "enough");
    World.same("output", end(id, WorkflowRuntimeStatus.TERMINATED).getSerializedOutput(), "\"enough\"");
  }

  private static void purge() throws Exception {
    var id = start(Chain.class, 1);
    end(id, WorkflowRuntimeStatus.COMPLETED);
    World.same("purged", client().purgeInstance(id), true);
    World.same("name", client().getInstanceState(id, false).getName(), "");
  }

  private static void retries() throws Exception {
    World.same("output", output(Patient.class, UUID.randomUUID().toString()), "3");
    var key = "hopeless" + UUID.randomUUID();
    var failure = end(start(Patient.class, key), WorkflowRuntimeStatus.FAILED).getFailureDetails();
    World.same("attempts", ATTEMPTS.get(key), 3);
    World.same("failure", failure.getErrorMessage().contains("attempt 3"), true);
  }

  private static void again() throws Exception {
    var id = start(Again.class, 5);
    client().raiseEvent(id, "answer", "kept");
    World.same("output", end(id, WorkflowRuntimeStatus.COMPLETED).getSerializedOutput(), "\"kept\"");
  }

  private static void errors() throws Exception {
    var id = start(Asks.class, 600);
    World.refused("the same instance", "already exists", () -> client().scheduleNewWorkflow(Asks.class, 1, id));
    client().terminateWorkflow(id, null);
    end(id, WorkflowRuntimeStatus.TERMINATED);
  }
}
