#pragma once

#include <string>
#include <vector>

/**
 * Returns the files and folders below /opt and /usr that this user may read, but other users may not. Does not search
 * the folders of /usr that belong to the system's packages, such as /usr/lib.
 * @throws std::runtime_error when there is too much to look at.
 */
std::vector<std::string> find_private_files();
