import io.dapr.client.DaprClientBuilder;
import io.dapr.client.domain.State;
import io.dapr.client.domain.StateOptions;
import io.dapr.client.domain.TransactionalStateOperation;
import io.dapr.client.domain.TransactionalStateOperation.OperationType;
import java.util.List;

/** Saves, reads, changes and deletes an order in the state store `statestore`. */
public class App {
  private static final String STORE = "statestore";
  private static final String KEY = "order-7";

  record Order(String item, int amount) {}

  public static void main(String[] args) throws Exception {
    try (var dapr = new DaprClientBuilder().build()) {
      dapr.saveState(STORE, KEY, new Order("boat", 1)).block();
      var saved = dapr.getState(STORE, KEY, Order.class).block();
      System.out.println("order 7: " + saved.getValue().amount() + " " + saved.getValue().item());

      // The ETag makes the write fail if another process changed the order in between.
      var order = new Order(saved.getValue().item(), 2);
      var firstWrite = new StateOptions(StateOptions.Consistency.STRONG, StateOptions.Concurrency.FIRST_WRITE);
      dapr.saveState(STORE, KEY, saved.getEtag(), order, firstWrite).block();
      System.out.println("order 7: " + order.amount() + " " + order.item());

      // The store applies both operations or neither.
      dapr.executeStateTransaction(STORE, List.of(
          new TransactionalStateOperation<>(OperationType.UPSERT, new State<>("shipped-7", order, "")),
          new TransactionalStateOperation<>(OperationType.DELETE, new State<Order>(KEY)))).block();
      if (dapr.getState(STORE, KEY, Order.class).block().getValue() == null) {
        System.out.println("order 7 was deleted");
      }
    }
  }
}
