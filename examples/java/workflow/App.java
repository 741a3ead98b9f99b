import io.dapr.workflows.client.DaprWorkflowClient;
import io.dapr.workflows.runtime.WorkflowRuntimeBuilder;
import java.time.Duration;

/**
 * Processes an order as a workflow. usage: App [SECONDS TO PACK]
 *
 * <p>After a crash, start the app again: the workflow continues where it stopped.
 */
public class App {
  private static final String INSTANCE = "order-7";

  public static void main(String[] args) throws Exception {
    int packSeconds = args.length > 0 ? Integer.parseInt(args[0]) : 1;
    new WorkflowRuntimeBuilder()
        .registerWorkflow(ProcessOrder.class)
        .registerActivity(ProcessOrder.Reserve.class)
        .registerActivity(ProcessOrder.Ship.class)
        .build().start(false);
    try (var client = new DaprWorkflowClient()) {
      if (client.getInstanceState(INSTANCE, false).getName().isEmpty()) {
        System.out.println("starting the workflow " + INSTANCE);
        client.scheduleNewWorkflow(ProcessOrder.class, new ProcessOrder.Order(7, packSeconds), INSTANCE);
      }
      var end = client.waitForInstanceCompletion(INSTANCE, Duration.ofMinutes(2), true);
      System.out.println("the workflow returned: " + end.readOutputAs(String.class));
    }
    // Closing the worker takes a minute.
    System.exit(0);
  }
}
