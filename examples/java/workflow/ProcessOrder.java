import io.dapr.workflows.Workflow;
import io.dapr.workflows.WorkflowActivity;
import io.dapr.workflows.WorkflowActivityContext;
import io.dapr.workflows.WorkflowStub;
import java.time.Duration;

/** Processes an order: reserve, pack, ship. */
public class ProcessOrder implements Workflow {
  public record Order(int id, int packSeconds) {}

  @Override
  public WorkflowStub create() {
    return context -> {
      var order = context.getInput(Order.class);
      context.callActivity(Reserve.class.getCanonicalName(), order.id()).await();
      context.createTimer(Duration.ofSeconds(order.packSeconds())).await();
      int shipped = context.callActivity(Ship.class.getCanonicalName(), order.id(), Integer.class).await();
      context.complete("order " + shipped + " shipped");
    };
  }

  public static class Reserve implements WorkflowActivity {
    @Override
    public Object run(WorkflowActivityContext context) {
      System.out.println("reserved the stock for order " + context.getInput(Integer.class));
      return null;
    }
  }

  public static class Ship implements WorkflowActivity {
    @Override
    public Object run(WorkflowActivityContext context) {
      System.out.println("shipped order " + context.getInput(Integer.class));
      return context.getInput(Integer.class);
    }
  }
}
