#pragma once

#include <sys/types.h>

#include "native/sandbox/spec.h"

/** Flags of clone(2) for the namespaces of a replica; as an ordinary user a user namespace comes first. */
int namespace_flags();

/**
 * In the first process of new namespaces: a root file system of the host's programs, read-only, and of what the replica
 * is given; loopback, and any port for anybody. What the host has besides, and other replicas' folders, is not in it.
 * @throws std::runtime_error naming the step that failed.
 */
void enter_world(const Spec& spec);

/** Lets `pid`, which has just made a user namespace, be root in it, and nobody outside. @param outer_uid Whom its root
 * is to the caller's namespace. */
void map_ids(pid_t pid, uint32_t outer_uid, uint32_t outer_gid);

/** No capability, now or after an exec. */
void drop_privileges();

/** @throws std::runtime_error of the form `what: strerror`. */
[[noreturn]] void fail(const std::string& what);
