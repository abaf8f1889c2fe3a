#pragma once
// Grammars in JavaScript: a handle that requests refer to, compiled on a pool thread, with a byte matcher that works
// without a model.
#include <napi.h>

#include <functional>
#include <memory>

#include "native/grammar/matcher.h"

namespace capstan {

// Returns the token table; called on the pool thread. Empty for a grammar that only matches bytes.
using TokenTableSource = std::function<std::shared_ptr<const grammar::TokenTable>()>;

// Returns a promise of the grammar's handle. Throws invalid_argument for a malformed source record.
Napi::Value compile_grammar(Napi::Env env, const Napi::Value& source, TokenTableSource tokens);
// `NativeAddon.parseGrammar`.
Napi::Value parse_grammar_binding(const Napi::CallbackInfo& info);
// `NativeAddon.compileGrammar`.
Napi::Value compile_grammar_binding(const Napi::CallbackInfo& info);
// Returns the grammar of a handle, or null for null and undefined.
std::shared_ptr<const grammar::CompiledGrammar> to_compiled_grammar(const Napi::Value& handle);

}  // namespace capstan
