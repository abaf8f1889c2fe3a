#pragma once

#include <string>

/** Bytes of an access key. LineSplitter never cuts a line within this many bytes after the start of a key. */
constexpr size_t kKeyLength = 59;
constexpr char kKeyPrefix[] = "sk-cap1_";

/**
 * Replaces access keys by their display form, so that no key is written to disk: the public id, an ellipsis and the
 * last four characters. A key is `sk-cap1_`, 12 characters, `_`, 32 characters, and 6 characters of checksum, the
 * CRC-32 of everything before it in base62.
 */
void redact_keys(std::string& line);
