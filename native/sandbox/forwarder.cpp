#include "native/sandbox/forwarder.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace {

constexpr size_t kBufferBytes = 64 << 10;
/** Above this many unwritten bytes, reading pauses (back pressure). */
constexpr size_t kMaxWaiting = 256 << 10;

bool would_wait() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

}  // namespace

Forwarder::Forwarder(int listener, const std::string& host, int port)
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), listener_(listener), buffer_(kBufferBytes) {
  auto* address = reinterpret_cast<sockaddr_in*>(&address_);
  address->sin_family = AF_INET;
  address->sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address->sin_addr) != 1)
    throw std::runtime_error("expected an IPv4 address, got " + host);
  address_length_ = sizeof *address;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = listener_;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, listener_, &event);
}

Forwarder::~Forwarder() {
  close(epoll_);
}

void Forwarder::process_events() {
  epoll_event events[64];
  const int count = epoll_wait(epoll_, events, 64, 0);
  bool has_new = false;
  for (int i = 0; i < count; i++) {
    has_new = has_new || events[i].data.fd == listener_;
    const auto found = connections_.find(events[i].data.fd);
    if (found == connections_.end()) continue;
    const std::shared_ptr<Connection> connection = found->second;
    // The client closed both directions, so the replica must see the end of the connection at once.
    if (events[i].data.fd == connection->in.from && (events[i].events & (EPOLLHUP | EPOLLERR)) != 0)
      end(*connection);
    else
      handle_events(*connection, events[i].data.fd, events[i].events);
  }
  // NOTE: accept last. A new connection can reuse the descriptor of one that just ended, which later events of the same
  // batch may still refer to.
  if (has_new) accept_all();
}

void Forwarder::accept_all() {
  for (;;) {
    const int outside = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (outside < 0) return;
    const int inside = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (inside < 0) {
      close(outside);
      continue;
    }
    const int on = 1;
    setsockopt(inside, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(inside, reinterpret_cast<const sockaddr*>(&address_), address_length_) != 0 && errno != EINPROGRESS) {
      close(inside);
      close(outside);
      continue;
    }
    const auto connection =
        std::make_shared<Connection>(Connection{{outside, inside, {}}, {inside, outside, {}}, 0, EPOLLOUT});
    connections_[outside] = connection;
    connections_[inside] = connection;
    epoll_event event{};
    event.data.fd = outside;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, outside, &event);
    event.events = EPOLLOUT;
    event.data.fd = inside;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, inside, &event);
  }
}

/** Handles the epoll `events` of one socket of a connection. */
void Forwarder::handle_events(Connection& connection, int fd, unsigned events) {
  if (!connection.is_connected) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(connection.in.to, SOL_SOCKET, SO_ERROR, &error, &length);
    sockaddr_storage peer{};
    socklen_t peer_length = sizeof peer;
    // The client has left, or no process listens inside.
    if (error != 0 || getpeername(connection.in.to, reinterpret_cast<sockaddr*>(&peer), &peer_length) != 0)
      return end(connection);
    connection.is_connected = true;
  }
  const bool is_outside = fd == connection.in.from;
  Flow& readable = is_outside ? connection.in : connection.out;
  Flow& writable = is_outside ? connection.out : connection.in;
  if ((events & ~EPOLLOUT) != 0 && !pump(readable)) return end(connection);
  if ((events & EPOLLOUT) != 0 && !pump(writable)) return end(connection);
  if (connection.in.is_shut && connection.out.is_shut) return end(connection);
  watch(connection);
}

/** Moves as many bytes as possible. Returns false when the connection is broken. */
bool Forwarder::pump(Flow& flow) {
  if (!drain(flow)) return false;
  while (!flow.has_ended && flow.waiting.size() < kMaxWaiting) {
    const ssize_t count = recv(flow.from, buffer_.data(), buffer_.size(), 0);
    if (count < 0 && would_wait()) break;
    if (count < 0) return false;
    if (count == 0) {
      flow.has_ended = true;
      break;
    }
    flow.waiting.append(buffer_.data(), static_cast<size_t>(count));
    if (!drain(flow)) return false;
    // A short read: the socket is probably empty, and other connections are waiting.
    if (static_cast<size_t>(count) < buffer_.size()) break;
  }
  if (flow.has_ended && flow.waiting.empty() && !flow.is_shut) {
    shutdown(flow.to, SHUT_WR);
    flow.is_shut = true;
  }
  return true;
}

bool Forwarder::drain(Flow& flow) {
  size_t sent = 0;
  while (sent < flow.waiting.size()) {
    const ssize_t count = send(flow.to, flow.waiting.data() + sent, flow.waiting.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && would_wait()) break;
    if (count < 0) return false;
    sent += static_cast<size_t>(count);
  }
  flow.waiting.erase(0, sent);
  return true;
}

void Forwarder::watch(Connection& connection) {
  const auto events = [](const Flow& reads, const Flow& writes) {
    return (!reads.has_ended && reads.waiting.size() < kMaxWaiting ? EPOLLIN : 0u) |
           (writes.waiting.empty() ? 0u : EPOLLOUT);
  };
  set_events(connection.in.from, connection.outside_events, events(connection.in, connection.out));
  // NOTE: epoll reports a socket that is closed in both directions forever, with any event mask. So stop watching it.
  if (connection.out.has_ended && connection.in.is_shut)
    epoll_ctl(epoll_, EPOLL_CTL_DEL, connection.in.to, nullptr);
  else
    set_events(connection.in.to, connection.inside_events, events(connection.out, connection.in));
}

void Forwarder::set_events(int fd, unsigned& watched, unsigned events) {
  if (events == watched) return;
  watched = events;
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
}

void Forwarder::end(Connection& connection) {
  const int outside = connection.in.from;
  const int inside = connection.in.to;
  connections_.erase(outside);
  connections_.erase(inside);
  close(outside);
  close(inside);
}
