#pragma once

#include <string>

/**
 * Makes the `/etc` of a replica in the empty folder `target`: files of its own, and copies of the machine's files that
 * programs need. A copy, because the replica of an ordinary user has the rights of the service on the machine's files.
 * @throws std::runtime_error naming the step that failed.
 */
void make_etc(const std::string& target, const std::string& inner_host);
