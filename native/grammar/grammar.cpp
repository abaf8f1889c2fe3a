#include "native/grammar/grammar.h"

#include "native/base/error.h"
#include "native/grammar/code_points.h"

namespace capstan::grammar {

void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

Expr literal(std::string_view bytes) {
  Expr expr{ExprKind::kLiteral, std::string(bytes), {}, {}};
  return expr;
}

Expr code_point_class(std::vector<CodePointRange> ranges) {
  return {ExprKind::kClass, {}, normalized(std::move(ranges)), {}};
}

Expr sequence(std::vector<Expr> items) {
  if (items.size() == 1) return std::move(items[0]);
  return {ExprKind::kSequence, {}, {}, std::move(items)};
}

Expr choice(std::vector<Expr> items) {
  if (items.size() == 1) return std::move(items[0]);
  return {ExprKind::kChoice, {}, {}, std::move(items)};
}

Expr repeat(Expr item, uint32_t min, uint32_t max) {
  Expr expr{ExprKind::kRepeat, {}, {}, {}, min, max};
  expr.items.push_back(std::move(item));
  return expr;
}

Expr rule_ref(std::string_view name) {
  return {ExprKind::kRule, std::string(name), {}, {}};
}

Expr until(std::string_view text) {
  return {ExprKind::kUntil, std::string(text), {}, {}};
}

Expr without(std::string_view text) {
  return {ExprKind::kWithout, std::string(text), {}, {}};
}

Expr regex(std::string_view pattern, RegexOptions options) {
  Expr expr{ExprKind::kRegex, std::string(pattern), {}, {}};
  expr.regex = std::make_shared<const RegexOptions>(std::move(options));
  return expr;
}

}  // namespace capstan::grammar
