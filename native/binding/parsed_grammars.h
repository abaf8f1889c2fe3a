#pragma once
// Grammars that one JavaScript thread has parsed and another one will compile. Reading a large grammar from JavaScript
// objects takes long, so it happens in a thread for texts, and only a number crosses to the thread of the engine.
#include <napi.h>

#include <functional>

#include "native/grammar/grammar.h"

namespace capstan {

using GrammarSource = std::function<grammar::Grammar()>;

// Keeps a source until it is taken or the calling environment ends. Returns its number.
double keep_parsed_grammar(Napi::Env env, GrammarSource source);
// Returns a source and forgets it. Returns an empty function for an unknown number.
GrammarSource take_parsed_grammar(double number);

}  // namespace capstan
