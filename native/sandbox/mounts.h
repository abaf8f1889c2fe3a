#pragma once

#include <cstdint>
#include <string>

constexpr uint64_t kReadOnly = 0x1;
constexpr uint64_t kNoSuid = 0x2;
constexpr uint64_t kNoDev = 0x4;

/** @throws std::runtime_error of the form `what: strerror`. */
[[noreturn]] void fail(const std::string& what);

bool exists(const std::string& path);
bool is_folder(const std::string& path);
/** Creates a folder and its parents. */
void make_folder(const std::string& path);

/** Shows `from`, a folder or file, also at `to`. Creates `to`. */
void bind_mount(const std::string& from, const std::string& to, uint64_t attributes);
/** Sets attributes of the mount at `path`. @param is_recursive Also of the mounts below it. */
void set_attributes(const std::string& path, uint64_t attributes, bool is_recursive);
void mount_tmpfs(const std::string& path, const std::string& options, unsigned long flags);
