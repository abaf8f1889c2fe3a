#pragma once

#include <sys/types.h>

#include <string>

#include "native/sandbox/spec.h"

/** The pipes between the supervisor and the workload. All close on exec. */
struct Pipes {
  int output[2];
  int errors[2];
  /** The error text of a failure before the exec; closed without text when the exec succeeds. */
  int failure[2];
  /** The exit status of the workload, as `CODE SIGNAL`, from its parent. */
  int status[2];
  /** The supervisor never writes to it. Its end closes it, which the processes below it can see. */
  int life[2];
};

/** How a process ended: by an exit code, or by a signal (then `code` is -1). */
struct ExitStatus {
  int code = -1;
  int signal = 0;
};

ExitStatus exit_status_of(int wait_status);

/**
 * Starts the workload on the host, without namespaces, below a process that kills it and all that it started when the
 * supervisor is killed. Returns the id of that process, which ends with the workload.
 */
pid_t start_plain(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups);

/**
 * Starts the first process of new namespaces, which sets them up, starts the workload and forwards the connections of
 * `listener` to it. It ends with the workload. Returns its process id on the host.
 */
pid_t start_isolated(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups, int listener);
