#pragma once

#include <sys/types.h>

#include "native/sandbox/spec.h"

/** Returns the clone(2) flags for the namespaces of a replica. An unprivileged user also needs a user namespace. */
int namespace_flags();

/**
 * Sets up the sandbox; runs in the first process of the new namespaces. The root file system has the host's programs,
 * read-only, a separate `/etc` and the replica's files, but no other host files and no files of other replicas. The
 * network has only loopback, where any user may bind any port.
 * @param is_root Whether the service runs as root. If not, the files that only its user may read are hidden.
 * @throws std::runtime_error naming the step that failed.
 */
void enter_sandbox(const Spec& spec, bool is_root);

/**
 * Makes `pid`, which has just created a user namespace, root inside it. It has no privileges outside.
 * @param outer_uid The user that this root is in the caller's namespace.
 */
void map_ids(pid_t pid, uint32_t outer_uid, uint32_t outer_gid);

/** Changes the user of this process, which is root, and drops its groups. Keeps its capabilities. */
void become_user(uint32_t uid, uint32_t gid);

/** Drops all capabilities, including those that an exec could regain. */
void drop_privileges();
