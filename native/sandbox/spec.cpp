#include "native/sandbox/spec.h"

#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace {

std::string read_all(int fd) {
  std::string text;
  char buffer[16384];
  for (;;) {
    const ssize_t count = read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer, static_cast<size_t>(count));
  }
}

std::pair<std::string, std::string> split_pair(const std::string& text) {
  const size_t at = text.find('=');
  if (at == std::string::npos) throw std::runtime_error("expected name=path, got " + text);
  return {text.substr(0, at), text.substr(at + 1)};
}

void take(Spec& spec, const std::string& key, const std::string& value) {
  if (key == "dir")
    spec.dir = value;
  else if (key == "isolated")
    spec.is_isolated = value == "1";
  else if (key == "socket")
    spec.socket_path = value;
  else if (key == "inner_host")
    spec.inner_host = value;
  else if (key == "inner_port")
    spec.inner_port = std::stoi(value);
  else if (key == "share")
    spec.shares.push_back(value);
  else if (key == "hide")
    spec.hides.push_back(value);
  else if (key == "input")
    spec.inputs.push_back(split_pair(value));
  else if (key == "home")
    spec.home = value;
  else if (key == "cache")
    spec.cache = value;
  else if (key == "cache_bytes")
    spec.cache_bytes = std::stoull(value);
  else if (key == "device")
    spec.devices.push_back(value);
  else if (key == "uid")
    spec.uid = static_cast<uint32_t>(std::stoul(value));
  else if (key == "gid")
    spec.gid = static_cast<uint32_t>(std::stoul(value));
  else if (key == "arg")
    spec.args.push_back(value);
  else if (key == "env")
    spec.env.push_back(value);
  else if (key == "cwd")
    spec.cwd = value;
  else if (key == "cgroup")
    spec.cgroups.push_back(value);
  else if (key == "memory_bytes")
    spec.memory_bytes = std::stoull(value);
  else if (key == "memory_reserve_bytes")
    spec.memory_reserve_bytes = std::stoull(value);
  else if (key == "spool_max_bytes")
    spec.spool_max_bytes = std::stoull(value);
  else if (key == "disk_bytes")
    spec.disk_bytes = std::stoull(value);
  else if (key == "disk_entries")
    spec.disk_entries = std::stoull(value);
  else if (key == "disk_reserve_bytes")
    spec.disk_reserve_bytes = std::stoull(value);
  else if (key == "scratch_bytes")
    spec.scratch_bytes = std::stoull(value);
  else
    throw std::runtime_error("unknown key " + key);
}

}  // namespace

Spec read_spec(int fd) {
  const std::string text = read_all(fd);
  Spec spec;
  size_t from = 0;
  while (from < text.size()) {
    const size_t key_end = text.find('\0', from);
    const size_t value_end = key_end == std::string::npos ? key_end : text.find('\0', key_end + 1);
    if (value_end == std::string::npos) throw std::runtime_error("the input ends in the middle of a value");
    take(spec, text.substr(from, key_end - from), text.substr(key_end + 1, value_end - key_end - 1));
    from = value_end + 1;
  }
  if (spec.dir.empty() || spec.args.empty()) throw std::runtime_error("expected the keys dir and arg");
  return spec;
}
