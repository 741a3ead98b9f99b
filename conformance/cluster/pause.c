/* Holds the namespaces of a pod until it gets a signal to end. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) { _exit(0); }

static void reap(int number) {
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

int main(void) {
  /* The first process of a PID namespace gets only signals that it handles. */
  signal(SIGINT, end);
  signal(SIGTERM, end);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
