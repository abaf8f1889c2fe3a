#pragma once

#include <string>
#include <vector>

/**
 * Returns the files and folders below /opt and /usr that this user may read, but not everybody. Not below the folders
 * of /usr that belong to the packages of the system, such as /usr/lib.
 * @throws std::runtime_error when there is too much to look at.
 */
std::vector<std::string> find_private_files();
