#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

/**
 * Forwards the connections of a listening Unix socket to a TCP address, in both directions and with half-closes.
 * Uses one epoll and no thread.
 */
class Forwarder {
 public:
  Forwarder(int listener, const std::string& host, int port);
  ~Forwarder();
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  /** A descriptor for the caller's poll: readable when process_events has work. */
  int fd() const { return epoll_; }
  void process_events();

 private:
  /** One direction, with the bytes that are read from `from` but not yet written to `to`. */
  struct Flow {
    int from;
    int to;
    std::string waiting;
    bool has_ended = false;
    bool is_shut = false;
  };
  struct Connection {
    Flow in;
    Flow out;
    /** The watched epoll events of the two sockets. */
    unsigned outside_events;
    unsigned inside_events;
    bool is_connected = false;
  };

  void accept_all();
  void handle_events(Connection& connection, int fd, unsigned events);
  bool pump(Flow& flow);
  bool drain(Flow& flow);
  void watch(Connection& connection);
  void set_events(int fd, unsigned& watched, unsigned events);
  void end(Connection& connection);

  int epoll_;
  int listener_;
  sockaddr_storage address_{};
  socklen_t address_length_ = 0;
  /** By socket; each connection is here twice. */
  std::unordered_map<int, std::shared_ptr<Connection>> connections_;
  std::vector<char> buffer_;
};
