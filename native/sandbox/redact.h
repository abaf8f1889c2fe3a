#pragma once

#include <string>

/** Longest text that can be an access key; a line is never cut within so many characters after the beginning of one. */
constexpr size_t kKeyLength = 59;
constexpr char kKeyPrefix[] = "sk-cap1_";

/**
 * Access keys (`sk-cap1_` + 12 + `_` + 32 + 6 of checksum, which is the CRC-32 of all before in base62) become their
 * display form: public id, an ellipsis and the last four characters. So none is ever written to a disk.
 */
void redact_keys(std::string& line);
