import io.dapr.client.DaprPreviewClient;
import io.dapr.client.domain.ConstantFailurePolicy;
import io.dapr.client.domain.DeleteJobRequest;
import io.dapr.client.domain.DropFailurePolicy;
import io.dapr.client.domain.GetJobRequest;
import io.dapr.client.domain.GetJobResponse;
import io.dapr.client.domain.JobSchedule;
import io.dapr.client.domain.ScheduleJobRequest;
import java.time.Duration;
import java.time.Instant;
import java.util.List;

/** Jobs, scheduled by way of the sidecar beside the app, which triggers it. */
class Jobs {
  static final List<World.Check> CHECKS = List.of(
      new World.Check("jobs", "a job lives from schedule to delete", Jobs::life),
      new World.Check("jobs", "the app gets every due trigger", Jobs::triggered),
      new World.Check("jobs", "failed jobs are retried", Jobs::fails),
      new World.Check("jobs", "errors", Jobs::errors));

  private static void life() throws Exception {
    try (var dapr = World.beside()) {
      var policy = new ConstantFailurePolicy(4).setDurationBetweenRetries(Duration.ofSeconds(9));
      dapr.scheduleJob(new ScheduleJobRequest("kept", JobSchedule.fromString("@every 1h")).setRepeat(7)
          .setData("salt".getBytes()).setFailurePolicy(policy)).block();
      var found = get(dapr, "kept");
      World.same("schedule", found.getSchedule().getExpression(), "@every 1h");
      World.same("repeats", found.getRepeats(), 7);
      World.same("data", new String(found.getData()), "salt");
      World.same("retries", ((ConstantFailurePolicy) found.getFailurePolicy()).getMaxRetries(), 4);
      var other = new ScheduleJobRequest("kept", JobSchedule.daily()).setFailurePolicy(new DropFailurePolicy());
      World.refused("the same name", "already exists", () -> dapr.scheduleJob(other).block());
      dapr.scheduleJob(other.setOverwrite(true)).block();
      World.same("policy", get(dapr, "kept").getFailurePolicy() instanceof DropFailurePolicy, true);
      dapr.deleteJob(new DeleteJobRequest("kept")).block();
      gone(dapr, "kept");
    }
  }

  private static void triggered() throws Exception {
    try (var dapr = World.beside()) {
      dapr.scheduleJob(new ScheduleJobRequest("once", Instant.now()).setData("\"bell\"".getBytes())).block();
      dapr.scheduleJob(new ScheduleJobRequest("thrice", JobSchedule.fromPeriod(Duration.ofSeconds(1))).setRepeat(3)
          .setData("\"bell\"".getBytes())).block();
      World.same("data", World.taken("once", 1, any -> true).get(0).asText(), "\"bell\"");
      World.taken("thrice", 3, any -> true);
      gone(dapr, "once");
      gone(dapr, "thrice");
      World.same("triggers", World.taken("thrice", 3, any -> true).size(), 3);
    }
  }

  private static void fails() throws Exception {
    try (var dapr = World.beside()) {
      var policy = new ConstantFailurePolicy(5).setDurationBetweenRetries(Duration.ofMillis(50));
      dapr.scheduleJob(new ScheduleJobRequest("fails", Instant.now()).setData("\"leak\"".getBytes()).setFailurePolicy(policy)).block();
      World.taken("fails", 3, any -> true);
      gone(dapr, "fails");
    }
  }

  private static void errors() throws Exception {
    try (var dapr = World.beside()) {
      World.refused("a malformed schedule", "failed to schedule job",
          () -> dapr.scheduleJob(new ScheduleJobRequest("bad", JobSchedule.fromString("sometimes"))).block());
    }
  }

  private static GetJobResponse get(DaprPreviewClient dapr, String name) {
    return dapr.getJob(new GetJobRequest(name)).block();
  }

  /** A job is not there any more when the answer to its last trigger is stored. */
  private static void gone(DaprPreviewClient dapr, String name) throws Exception {
    World.until("the end of " + name, () -> {
      try {
        get(dapr, name);
        return false;
      } catch (RuntimeException error) {
        return error.getMessage().contains("not found");
      }
    });
  }
}
