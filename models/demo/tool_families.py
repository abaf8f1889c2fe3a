"""Families of tools: what they are called, their parameters, and the ways that people ask for them.

A family's parameter is (names, type, description, value). The name of a parameter is drawn for each chat, so that the model
reads it from the given tools rather than from memory."""

import words as w

INTEGER, NUMBER, STRING = "integer", "number", "string"


def pick(options):
    return lambda rng: rng.choice(options)


def count(low, high):
    return lambda rng: rng.randint(low, high)


def decimal(rng):
    tenths = rng.randint(10, 999)
    return rng.choice([rng.randint(1, 500), tenths / 10 if tenths % 10 else tenths // 10, rng.randint(1, 20) * 50])


def date(rng):
    return (
        f"{rng.choice(w.MONTHS)} {rng.randint(1, 28)}"
        if rng.random() < 0.4
        else f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    )


def phrase(rng):
    return " ".join(w.word(rng) for _ in range(rng.randint(1, 4)))


def currency(rng):
    return rng.choice("EUR USD GBP JPY CHF CAD AUD SEK NOK INR".split())


UNITS = ["celsius", "fahrenheit"]
ASK = "(|Please |Can you |Could you |I want you to |Hey, |Now )"

# (names, descriptions, parameters by slot, phrasings); a slot in a phrasing is filled with the parameter's value.
FAMILIES = [
    (
        "get_weather|get_current_weather|weather|fetch_weather|lookup_weather|current_weather|weather_report|check_weather",
        "Get the current weather in a city.|Get the weather|Returns the current weather for a location.|Get current temperature for a given location.|Weather lookup",
        {
            "c": ("city|location|place|town|city_name", STRING, "The city|City name|The city and country|Name of the city", w.city),
            "u": ("unit|units|temperature_unit|scale", UNITS, "Temperature unit|The unit of the temperature", pick(UNITS)),
        },
        [
            "(What is|What's|How is|How's) the weather (in|like in) {c}(| today| now| right now| at the moment| currently)",
            "(What is|What's) the (temperature|current temperature|current weather|forecast) in {c}(| in {u}| today| right now)",
            "(Tell me|Check|Get|Show me|Look up|Give me|Find) the (weather|temperature|current weather) (in|for) {c}(| in {u}|, in {u}| using {u})",
            "weather in {c}",
            "{c} weather",
            "Weather for {c}(| in {u})",
            "Is it (cold|warm|hot|raining|sunny|snowing|windy) in {c}(| today| now)",
            "How (warm|cold|hot) is it in {c}(| in {u}| today| in degrees {u}| right now)",
            "(What is|What's) the weather like in {c}(| in {u}|, in {u}|? Use {u}| today in {u})",
            "Do I need (an umbrella|a coat|a jacket) in {c}(| today)",
            "I am (travelling|going|flying) to {c}. (How is the weather there|What is the weather there|What's the weather like)",
            "(Can you|Could you|Please) (check|tell me|get) the weather in {c}(| in {u}| for me)",
        ],
    ),
    (
        "get_time|current_time|get_current_time|local_time|time_in_city",
        "Get the local time of a city.|Current time in a place",
        {"c": ("city|location|place|timezone_city", STRING, "The city", w.city)},
        [
            "What time is it in {c}(| now| right now)",
            "(Tell me|Get|Show me|What is|What's) the (time|local time|current time) in {c}",
            "time in {c}",
            "How late is it in {c}",
        ],
    ),
    (
        "convert_currency|exchange|currency_converter|exchange_money",
        "Convert money between currencies.|Exchange an amount",
        {
            "a": ("amount|value|sum", NUMBER, "The amount", decimal),
            "f": ("from|from_currency|source|base", STRING, "Source currency|Currency code", currency),
            "t": ("to|to_currency|target|quote", STRING, "Target currency|Currency code", currency),
        },
        [
            "(Convert|Exchange|Change) {a} {f} (to|into) {t}",
            "(How much|What) is {a} {f} in {t}",
            "I have {a} {f}, how much is that in {t}",
        ],
    ),
    (
        "send_email|send_mail|email|mail_send",
        "Send an email.|Sends a mail to a person",
        {
            "t": ("to|recipient|address|email", STRING, "Recipient|Email address", w.email),
            "s": ("subject|title|topic", STRING, "Subject line", phrase),
        },
        [ASK + "(send|write) an (email|e-mail) to {t} (with subject|about|with the subject) {s}", "(Email|Mail) {t} about {s}"],
    ),
    (
        "send_message|message|send_sms|text_message|notify",
        "Send a text message to a person.|Send a message",
        {
            "t": ("to|recipient|name|contact", STRING, "Who gets it|The contact", w.name),
            "m": ("text|message|body|content", STRING, "The text|Message body", phrase),
        },
        [
            ASK + "(send|text|message) {t}: {m}",
            "(Tell|Text|Message) {t} that {m}",
            "Send {t} the message {m}",
            "Send the message {m} to {t}",
        ],
    ),
    (
        "create_event|add_event|schedule|schedule_meeting|create_meeting|book_meeting",
        "Create a calendar event.|Add an entry to the calendar",
        {
            "t": (
                "title|name|event|summary",
                STRING,
                "Title of the event",
                lambda r: r.choice([r.choice(w.EVENTS), w.thing(r), phrase(r)]),
            ),
            "d": ("date|day|on", STRING, "The day", lambda r: r.choice([date(r), r.choice(w.DAYS)])),
            "h": ("time|start|at|start_time", STRING, "Start time", w.clock),
        },
        [
            ASK + "(create|add|schedule|plan) (a|the) {t} on {d}(| at {h})",
            "(Put|Enter) {t} in my calendar (on|for) {d}(| at {h})",
            "(Schedule|Book) {t} for {d} at {h}",
        ],
    ),
    (
        "set_timer|start_timer|timer|countdown",
        "Start a timer.|Set a timer",
        {"n": ("minutes|duration|length|time_minutes", INTEGER, "Minutes", count(1, 90))},
        [
            ASK + "(set|start) a timer (for|of) {n} minutes",
            "Timer for {n} minutes",
            "(Wake me|Remind me|Ring) in {n} minutes",
            "{n} minutes timer(|, please)",
        ],
    ),
    (
        "set_alarm|alarm|wake_up|create_alarm",
        "Set an alarm.|Wake the user",
        {"h": ("time|at|hour", STRING, "Time of day", w.clock)},
        [ASK + "set an alarm for {h}", "Wake me (up |)at {h}", "Alarm at {h}"],
    ),
    (
        "add_reminder|create_reminder|remind|set_reminder",
        "Add a reminder.|Remind the user of something",
        {"t": ("text|task|what|title", STRING, "What to remember", phrase), "d": ("day|date|when", STRING, "When", pick(w.DAYS))},
        [ASK + "remind me (to|of) {t} on {d}", "(Add|Set) a reminder for {d}: {t}", "Reminder on {d}: {t}"],
    ),
    (
        "search_web|web_search|search|google|internet_search",
        "Search the web.|Look something up on the internet",
        {
            "q": ("query|q|text|terms|search_query", STRING, "What to search for|Search terms", phrase),
            "n": ("limit|count|max_results|results", INTEGER, "How many results", count(1, 20)),
        },
        [
            ASK + "(search|search the web|look|search the internet) for {q}",
            "(Find|Give me|Show me) {n} results (for|about) {q}",
            "(Google|Search|Look up) {q}",
            "Search for {q} and give me {n} results",
        ],
    ),
    (
        "get_stock_price|stock_price|quote|get_quote|stock_quote",
        "Get the price of a stock.|Current share price",
        {
            "s": (
                "symbol|ticker|company|stock",
                STRING,
                "The ticker symbol|Company",
                lambda r: r.choice(
                    [r.choice(w.COMPANIES), "".join(r.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(r.randint(2, 4)))]
                ),
            )
        },
        [
            "(What is|What's|Get|Show me|Tell me|Check) the (stock price|price|share price|stock) of {s}",
            "How much is (a share of |){s}(| stock)",
            "{s} stock price",
            "(Price|Quote) of {s}",
        ],
    ),
    (
        "translate|translate_text|translator|get_translation",
        "Translate a text.|Translate words into a language",
        {
            "x": ("text|phrase|input|source_text", STRING, "The text", phrase),
            "l": (
                "language|target|target_language|to",
                STRING,
                "Target language",
                pick("French German Spanish Italian Portuguese Dutch Polish Japanese Chinese Arabic".split()),
            ),
        },
        [ASK + "translate {x} (to|into) {l}", "(How do you say|What is) {x} in {l}", "(Translate into|Say in) {l}: {x}"],
    ),
    (
        "find_restaurant|search_restaurants|restaurants|find_restaurants",
        "Find restaurants.|Search for places to eat",
        {
            "f": ("cuisine|food|kind|dish", STRING, "Kind of food", pick(w.FOODS)),
            "c": ("city|location|place|near", STRING, "Where", w.city),
        },
        [
            "(Find|Show me|Search|Look for) (a |)(restaurant|restaurants|place|places) (with|for|that serves) {f} in {c}",
            "Where can I eat {f} in {c}",
            "I want {f} in {c}",
        ],
    ),
    (
        "book_hotel|reserve_hotel|hotel_booking|reserve_room",
        "Book a hotel room.|Reserve a room",
        {
            "c": ("city|location|place", STRING, "The city", w.city),
            "n": ("nights|duration|number_of_nights|stay", INTEGER, "Number of nights", count(1, 14)),
            "g": ("guests|people|persons", INTEGER, "Number of guests", count(1, 6)),
        },
        [
            ASK + "(book|reserve) a (hotel|room|hotel room) in {c} for {n} nights(| and {g} people| for {g} guests)",
            "I need a (room|hotel) in {c} for {n} nights",
        ],
    ),
    (
        "search_flights|find_flights|flights|book_flight|flight_search",
        "Search flights.|Find a flight between two cities",
        {
            "f": ("from|origin|departure|from_city", STRING, "Where the flight starts", w.city),
            "t": ("to|destination|arrival|to_city", STRING, "Where the flight ends", w.city),
            "d": ("date|day|on", STRING, "Day of the flight", date),
        },
        [
            "(Find|Search|Book|Show me|Get me) (flights|a flight) from {f} to {t}(| on {d})",
            "I want to fly from {f} to {t}(| on {d})",
            "(Flights|Flight) {f} to {t} on {d}",
            "Are there flights from {f} to {t}",
        ],
    ),
    (
        "get_distance|distance|route|get_route|travel_time",
        "Distance between two places.|Get the route",
        {"f": ("from|origin|start|a", STRING, "Start", w.city), "t": ("to|destination|end|b", STRING, "End", w.city)},
        [
            "How far is it from {f} to {t}",
            "(What is|What's|Get|Compute) the distance (between {f} and {t}|from {f} to {t})",
            "How far is {t} from {f}",
        ],
    ),
    (
        "play_music|play_song|play|music_player",
        "Play a song.|Start music",
        {"s": ("song|title|track|name", STRING, "The song", phrase), "a": ("artist|by|singer", STRING, "The artist", w.full_name)},
        [ASK + "play (the song |){s}(| by {a})", "I want to hear {s} by {a}", "Put on {s} by {a}"],
    ),
    (
        "turn_on_light|light|set_light|switch_light|control_light",
        "Switch a light.|Control the lights",
        {
            "r": (
                "room|where|location|area",
                STRING,
                "The room",
                lambda r: r.choice("kitchen bedroom bathroom garage hallway office cellar garden".split()),
            ),
            "s": ("state|status|action|power", ["on", "off"], "on or off", pick(["on", "off"])),
        },
        [
            ASK + "(turn|switch) {s} the (light|lights|lamp) in the {r}",
            "(Turn|Switch) the {r} (light|lights) {s}",
            "{r} light {s}",
            "Lights {s} in the {r}",
        ],
    ),
    (
        "set_temperature|thermostat|set_thermostat|heating",
        "Set the temperature of a room.|Control the heating",
        {
            "n": ("temperature|degrees|value|target", NUMBER, "Degrees", count(12, 30)),
            "r": ("room|zone|where", STRING, "The room", pick("kitchen bedroom bathroom garage hallway office cellar".split())),
        },
        [
            ASK + "(set|put|turn) the (temperature|heating) (in|of) the {r} to {n}(| degrees)",
            "(Heat|Warm) the {r} to {n} degrees",
            "Make it {n} degrees in the {r}",
        ],
    ),
    (
        "calculate|calculator|evaluate|compute|math",
        "Evaluate an expression.|Calculator",
        {
            "e": (
                "expression|formula|input|expr",
                STRING,
                "The expression",
                lambda r: f"{r.randint(2, 999)} {r.choice('+-*/')} {r.randint(2, 999)}",
            )
        },
        ["(Calculate|Compute|Evaluate|Work out) {e}", "What is {e}", "Use the calculator: {e}", "How much is {e}"],
    ),
    (
        "get_order|order_status|lookup_order|track_order|find_order",
        "Get the status of an order.|Look up an order",
        {"i": ("order_id|id|order|number|order_number", STRING, "Order number", w.code)},
        [
            "(Where is|What is the status of|Check|Track|Look up|Find|Show me) (my |the |)order {i}",
            "(What about|Status of) order {i}",
            "Has order {i} (arrived|been sent|shipped)",
        ],
    ),
    (
        "get_user|find_user|lookup_user|user_info|get_contact",
        "Find a user.|Get the data of a person",
        {"n": ("name|user|username|full_name", STRING, "The name", w.full_name)},
        [
            "(Find|Look up|Show me|Get) (the |)(user|contact) {n}",
            "Who is (the user |){n}",
            "(Give me|What is) the (contact|data) of {n}",
        ],
    ),
    (
        "create_user|add_user|register|add_contact|new_user",
        "Create a user.|Add a person",
        {
            "n": ("name|full_name|user", STRING, "Name", w.full_name),
            "a": ("age|years", INTEGER, "Age", count(18, 90)),
            "e": ("email|mail|address", STRING, "Email", w.email),
        },
        [
            "(Create|Add|Register) (a |)(user|contact|person|new user) (called |named |){n}(|, age {a}|, {a} years old| with email {e}|, age {a}, email {e})"
        ],
    ),
    (
        "order_food|place_order|order|order_item|buy",
        "Order a product.|Buy something",
        {
            "q": ("quantity|count|number|amount", INTEGER, "How many", count(1, 50)),
            "p": ("item|product|article|what", STRING, "What to buy", lambda r: r.choice(r.choice((w.PRODUCTS, w.FOODS)))),
        },
        [ASK + "(order|buy|get me) {q} {p}", "I (want|need|would like) {q} {p}", "(Place an order for|Add) {q} {p}(| to my order)"],
    ),
    (
        "roll_dice|dice|throw_dice|random_dice",
        "Roll dice.|Throw dice",
        {
            "n": ("sides|faces|size", INTEGER, "Sides of a die", pick([4, 6, 8, 10, 12, 20, 100])),
            "k": ("count|dice|times|number", INTEGER, "Number of dice", count(1, 9)),
        },
        ["(Roll|Throw) {k} dice with {n} sides", "Roll a {n}-sided die {k} times", "(Roll|Throw) {k} dice"],
    ),
    (
        "read_file|open_file|get_file|load_file|cat",
        "Read a file.|Open a file",
        {
            "p": (
                "path|file|filename|name",
                STRING,
                "Path of the file",
                lambda r: (
                    f"{r.choice(['', '/tmp/', 'data/', 'src/', w.pseudo(r) + '/'])}{w.word(r)}.{r.choice(['txt', 'json', 'csv', 'md', 'ts'])}"
                ),
            )
        },
        ["(Read|Open|Show me|Print) (the file |){p}", "What is in (the file |){p}", "(Show|Give me) the contents of {p}"],
    ),
    (
        "get_news|news|headlines|latest_news",
        "Get news.|Latest headlines",
        {"t": ("topic|about|subject|category", STRING, "Topic", lambda r: r.choice([r.choice(w.TOPICS), w.word(r)]))},
        [
            "(What is|What's|Show me|Get|Tell me) the (latest |)news (about|on) {t}",
            "(News|Headlines) about {t}",
            "Any news about {t}",
        ],
    ),
    (
        "get_capital|country_info|capital_of|country",
        "Facts of a country.|Get the capital of a country",
        {
            "c": (
                "country|name|nation",
                STRING,
                "The country",
                lambda r: r.choice([r.choice(w.COUNTRIES), w.pseudo(r).capitalize() + "ia"]),
            )
        },
        [
            "(What is|What's|Tell me|Find) the capital of {c}",
            "Which city is the capital of {c}",
            "Tell me about the country {c}",
            "Capital of {c}",
        ],
    ),
    (
        "add_numbers|add|sum|plus",
        "Add two numbers.|Sum of two numbers",
        {
            "a": ("a|x|first|left", NUMBER, "First number", count(0, 9999)),
            "b": ("b|y|second|right", NUMBER, "Second number", count(0, 9999)),
        },
        [
            "(Add|Sum) {a} and {b}",
            "What is {a} (plus|+) {b}",
            "{a} + {b}",
            "Use the tool to add {a} and {b}",
            "What is the sum of {a} and {b}",
        ],
    ),
    (
        "multiply|times|product|multiply_numbers",
        "Multiply two numbers.|Product of two numbers",
        {
            "a": ("a|x|first|left", NUMBER, "First number", count(0, 999)),
            "b": ("b|y|second|right", NUMBER, "Second number", count(0, 999)),
        },
        ["Multiply {a} (and|by|with) {b}", "What is {a} (times|*|x) {b}", "{a} * {b}", "What is the product of {a} and {b}"],
    ),
]
