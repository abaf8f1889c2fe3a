#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

/** Hands the connections of a listening Unix socket to a TCP address, both ways, with half-closes, until told to stop.
 * One epoll, no thread. */
class Forwarder {
 public:
  Forwarder(int listener, const std::string& host, int port);
  ~Forwarder();
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  /** For the caller's own poll: readable when there is something to do. */
  int fd() const { return epoll_; }
  void work();

 private:
  /** One direction: what came from `from` and could not go to `to` yet. */
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
    /** What epoll watches for. */
    unsigned outside_events;
    unsigned inside_events;
    bool is_connected = false;
  };

  void accept_all();
  void work_on(Connection& both, int fd, unsigned events);
  bool pump(Flow& flow);
  bool drain(Flow& flow);
  void watch(Connection& connection);
  void set_events(int fd, unsigned& watched, unsigned events);
  void end(Connection& connection);

  int epoll_;
  int listener_;
  sockaddr_storage address_{};
  socklen_t address_length_ = 0;
  /** By each of their two sockets. */
  std::unordered_map<int, std::shared_ptr<Connection>> connections_;
  std::vector<char> buffer_;
};
