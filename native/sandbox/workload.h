#pragma once

#include <sys/types.h>

#include <string>

#include "native/sandbox/spec.h"

/** The pipes between the supervisor and what it runs; all close on exec. */
struct Pipes {
  int output[2];
  int errors[2];
  /** What went wrong before the exec, as text; closed without a word once it is done. */
  int failure[2];
  /** How the workload ended, from the first process of its namespaces. */
  int status[2];
};

/** How a process ended; one of the two. */
struct Ending {
  int code = -1;
  int signal = 0;
};

Ending ending_of(int wait_status);

/** Starts the workload as a child, on the host as it is. */
pid_t start_plain(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups);

/** Starts the first process of new namespaces, which sets them up, starts the workload and forwards connections of
 * `listener` to it until it ends. Returns its id out here. */
pid_t start_isolated(const Spec& spec, const Pipes& pipes, const std::vector<int>& cgroups, int listener);
