#pragma once

#include <string>

/**
 * Makes the `/etc` of a replica in the empty folder `target`: separate accounts and hosts, and copies of the machine's
 * files that programs need. Copies, because the replica of an ordinary user has the service's rights on those files.
 * @throws std::runtime_error naming the step that failed.
 */
void make_etc(const std::string& target, const std::string& inner_host);
