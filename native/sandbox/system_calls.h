#pragma once

/**
 * Refuses the system calls that a workload could use against the kernel or to get new rights, for this process and all
 * that it starts. Needs no_new_privs. The calls fail with an error and do not end the process.
 * @throws std::runtime_error when the kernel or the processor has no such filter.
 */
void filter_system_calls();
