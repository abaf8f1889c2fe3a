"""Sums and differences of numbers up to 99. With a carry, the answer shows the tens and the ones first."""

import facts
import words as w
from exchange import ask, pair

ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen""".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SMALL = 20  # Sums of numbers up to this one are known by heart, without steps.
MOST = 99

PLUS = (
    "(What is|What's|How much is|Calculate|Compute|Work out|Tell me|Solve|) ({a} + {b}|{a}+{b}|{a} plus {b})(|| =| = ?)",
    "(What is|What's|How much is|Calculate|Tell me|) (the sum of {a} and {b}|{a} and {b} together|{a} and {b})",
    "(Add|Sum|Sum up|Please add|Can you add|Add up|Add together) {a} and {b}",
    "(Add|Please add|Can you add) {a} to {b}",
    "(What do I get|What do you get|What is it|What comes out) if (I|you) add {a} (to|and) {b}",
    "(What|How much) (do|does) {a} (and|plus|+) {b} (make|give|equal|come to)",
    "{a} (+|plus) {b} (is what|makes what|is how much|equals what|equals|is|gives)",
    "I need (the sum of {a} and {b}|{a} + {b}|{a} plus {b})",
    "(Can|Could) you (calculate|work out|compute|do) ({a} + {b}|{a} plus {b})",
    "(The result of|Result of|Give me|Show me|So what would|And) {a} (+|plus) {b}(| be| please)",
    "{a} (+|plus) {b}, (please|what is that|what does that make|how much is that|what do you get)",
    "How (many|much) (are|is|would be) {a} (+|plus|and) {b}",
    "(There are|I have|We have) {a} and {b} (more|others), (what is|how much is) {a} + {b}",
)
MINUS = (
    "(What is|What's|How much is|Calculate|Compute|Work out|Tell me|Solve|) ({a} - {b}|{a}-{b}|{a} minus {b})(|| =| = ?)",
    "(What is|What's|How much is|Calculate|Tell me|) (the difference of {a} and {b}|the difference between {a} and {b}|{a} less {b}|{a} take away {b})",
    "(Subtract|Please subtract|Can you subtract|Take|Take away) {b} from {a}",
    "(What do I get|What do you get|What is left|What remains) if (I|you) (take|subtract) {b} from {a}",
    "(What|How much) (do|does) {a} (-|minus) {b} (make|give|equal|come to)",
    "{a} (-|minus) {b} (is what|makes what|is how much|equals what|equals|is|gives)",
    "I need ({a} - {b}|{a} minus {b}|the difference of {a} and {b})",
    "(Can|Could) you (calculate|work out|compute|do) ({a} - {b}|{a} minus {b})",
    "(The result of|Result of|Give me|Show me|So what would|And) {a} (-|minus) {b}(| be| please)",
    "{a} (-|minus) {b}, (please|what is that|what does that make|how much is that|what do you get)",
    "How (many|much) (are|is|would be) {a} (-|minus) {b}",
    "(There are|I have|We have) {a} and (lose|give away|take away) {b}, (what is|how much is) {a} - {b}",
)
CHINESE_PLUS = (
    "(|请问|请算一下|算一下|计算|请计算)({a}加{b}|{a} 加 {b}|{a} + {b}|{a}+{b}|{a}加上{b})(等于多少|是多少|等于几|等于|得多少|是几||)",
    "{a}(和|与){b}(的和|加起来)(是多少|等于多少)",
)
CHINESE_MINUS = (
    "(|请问|请算一下|算一下|计算|请计算)({a}减{b}|{a} 减 {b}|{a} - {b}|{a}-{b}|{a}减去{b})(等于多少|是多少|等于几|等于|得多少|是几||)",
    "{a}(和|与){b}的差(是多少|等于多少)",
)


def in_words(number):
    if number < 20:
        return ONES[number]
    return TENS[number // 10 - 2] + ("-" + ONES[number % 10] if number % 10 else "")


def added(a, b):
    """'17 + 25 = 30 + 12 = 42': with a carry, first the tens and the ones."""
    ones = a % 10 + b % 10
    step = "" if ones < 10 or max(a, b) <= SMALL else f"{a + b - ones} + {ones} = "
    return f"{a} + {b} = {step}{a + b}"


def steps(a, b):
    """a - b with a >= b: ['32 - 7', '25'] for 42 - 17, as the ones do not suffice, and else ['25']."""
    borrows = b >= 10 and a % 10 < b % 10
    return [f"{a - b // 10 * 10} - {b % 10}"] * borrows + [str(a - b)]


def subtracted(a, b):
    """'42 - 17 = 32 - 7 = 25', and '17 - 42 = -(42 - 17) = -(32 - 7) = -25'."""
    if max(a, b) <= SMALL:
        parts = [str(a - b)]
    elif a < b:
        parts = [f"-({part})" for part in [f"{b} - {a}", *steps(b, a)[:-1]]] + [f"-{b - a}"]
    else:
        parts = steps(a, b)
    return " = ".join([f"{a} - {b}", *parts])


def numbers(rng):
    while True:
        a, b = (rng.randint(10, MOST) if rng.random() < 0.85 else rng.randint(0, MOST) for _ in range(2))
        if max(a, b) > SMALL:
            return a, b


def question(rng, forms, a, b):
    text = w.expand(rng.choice(forms), rng).strip()
    said = in_words if max(a, b) <= MOST and rng.random() < 0.06 and "+" not in text and "-" not in text else str
    text = text.replace("{a}", said(a)).replace("{b}", said(b))
    return text[0].upper() + text[1:]


def sums(rng):
    a, b = numbers(rng)
    plus = rng.random() < 0.5
    if not plus and a < b and rng.random() < 0.75:
        a, b = b, a
    answer = added(a, b) if plus else subtracted(a, b)
    roll = rng.random()
    if roll < 0.12:
        text = w.expand(rng.choice(CHINESE_PLUS if plus else CHINESE_MINUS), rng).replace("{a}", str(a)).replace("{b}", str(b))
        return pair("sums", text + rng.choice(["？", "?", "", "。"]), answer)
    if roll < 0.2:
        return too_large(rng)
    return pair("sums", ask(rng, question(rng, PLUS if plus else MINUS, a, b), ("?", "?", "?", "", "", ".")), answer)


def too_large(rng):
    """Sums of larger numbers or of more than two: the model says so instead of guessing."""
    a, b = rng.choice([rng.randint(100, 200), rng.randint(100, 2000), rng.randint(100, 99999)]), rng.randint(0, 2000)
    if rng.random() < 0.25:
        a, b, c = (rng.randint(0, MOST) for _ in range(3))
        text = rng.choice(["", "What is ", "Calculate ", "How much is "]) + f"{a} {rng.choice('+-')} {b} {rng.choice('+-')} {c}"
    else:
        text = question(rng, rng.choice([PLUS, MINUS]), *((a, b) if rng.random() < 0.5 else (b, a)))
    return pair("sums", ask(rng, text, ("?", "?", "", ".")), facts.ONLY_SMALL)
