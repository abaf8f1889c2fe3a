"""Vocabularies of the generated corpus, and the small grammar that its phrasings are written in."""

import re

NAMES = """Anna Ben Carla David Elena Felix Grace Henry Irene Jack Karen Leo Maria Noah Olivia Paul Quinn Rosa Samuel Tina
Umar Vera Walter Xenia Yusuf Zoe Alice Bob Charlie Diana Edward Fatima George Hannah Ivan Julia Kevin Laura Michael Nina
Oscar Petra Rachel Simon Thomas Ursula Victor Wendy Yara Zack Aisha Bruno Chloe Dmitri Emma Frank Gita Hugo Ines James
Kofi Lena Marco Nadia Omar Priya Ravi Sofia Tomas Uma Viktor William Ximena Yuki Zara Amir Bella Carlos Daphne Erik Fiona
Gustav Helga Igor Jana Klaus Lucia Mehmet Nora Otto Pia Rafael Sara Theo Ulrich Vanessa Wanda Yann Zita Alex Sam Max John
Jane Mary Peter Lucy Mark Susan Robert Linda Daniel Emily Matthew Sarah Andrew Kate Steven Ruth Ada Alan Grace Linus Chen
Wei Mei Hiroshi Keiko Jamal Amara Chidi Ngozi Pablo Diego Camila Mateo Giulia Luca Pierre Amelie Jonas Freya Lars Ingrid
Zoë Chloé José André Björn Søren""".split()

SURNAMES = """Smith Jones Brown Taylor Wilson Evans Walker Wright Green Hall Wood Clarke Jackson Turner Hill Cooper Ward Moore
King Baker Harris Young Allen Mitchell Lopez Garcia Martin Silva Santos Rossi Bianchi Schmidt Weber Fischer Novak Kowalski
Ivanov Petrov Tanaka Sato Kim Park Lee Chen Wang Singh Patel Khan Ali Hassan Okafor Mensah Larsen Berg Lindgren Virtanen
Dubois Moreau Laurent Janssen Peeters Murphy Kelly Byrne Campbell Stewart""".split()

CITIES = """Paris|London|Berlin|Madrid|Rome|Lisbon|Vienna|Prague|Warsaw|Budapest|Athens|Oslo|Stockholm|Helsinki|Copenhagen|
Dublin|Brussels|Amsterdam|Zurich|Geneva|Milan|Naples|Porto|Seville|Valencia|Barcelona|Lyon|Nice|Marseille|Hamburg|Munich|
Cologne|Dresden|Krakow|Riga|Vilnius|Tallinn|Sofia|Bucharest|Belgrade|Zagreb|Istanbul|Ankara|Cairo|Tunis|Casablanca|Lagos|
Accra|Nairobi|Kampala|Dakar|Cape Town|Johannesburg|Mumbai|Delhi|Chennai|Kolkata|Karachi|Lahore|Dhaka|Bangkok|Hanoi|Jakarta|
Manila|Singapore|Seoul|Busan|Tokyo|Osaka|Kyoto|Nagoya|Beijing|Shanghai|Shenzhen|Hong Kong|Taipei|Sydney|Melbourne|Perth|
Brisbane|Auckland|Wellington|New York|Boston|Chicago|Seattle|Portland|San Francisco|Los Angeles|San Diego|Denver|Dallas|
Austin|Houston|Miami|Atlanta|Toronto|Montreal|Vancouver|Ottawa|Calgary|Mexico City|Havana|Bogota|Lima|Quito|Santiago|
Buenos Aires|Montevideo|Rio de Janeiro|São Paulo|Brasilia|Reykjavik|Bergen|Ghent|Graz|Bologna|Turin|Leeds|Bristol|York|
Glasgow|Edinburgh|Cardiff|Zürich|Málaga|Köln|Moscow|Kyiv|Tbilisi|Yerevan|Baku|Tehran|Dubai|Doha|Muscat|Amman|Beirut""".replace(
    "\n", ""
).split("|")

SOFTWARE = """Docker|Python|Linux|PostgreSQL|Redis|nginx|Kubernetes|TensorFlow|PyTorch|React|MySQL|Excel|Photoshop|Chrome|VS Code|Git|
Ubuntu|Firefox|Windows|Word|Blender|MongoDB|Apache|Java|Rust|Android|Minecraft|Spotify|Zoom|Slack|Django|Rails|Vue|Angular|
vLLM|Ollama|llama.cpp|ChatGPT|Claude|npm|Debian|WhatsApp|Emacs|Vim""".replace("\n", "").split("|")

COUNTRIES = """France Germany Spain Italy Portugal Poland Norway Sweden Finland Denmark Ireland Greece Turkey Egypt Kenya Nigeria
Ghana India China Japan Korea Vietnam Thailand Australia Canada Mexico Brazil Peru Chile Argentina Iceland Austria Hungary
Switzerland Belgium Cuba Morocco Russia Ukraine""".split()

COLOURS = """red blue green yellow orange purple pink brown black white grey silver golden violet turquoise crimson indigo scarlet
teal amber beige maroon olive navy ivory""".split()

ADJECTIVES = """old new big small quiet loud bright dark warm cold happy sad quick slow brave calm clever gentle heavy light long
short narrow wide round square hidden broken empty full fresh frozen wooden iron lazy lucky strange simple soft hard sweet
sharp smooth rough shiny silent steep tall tiny wild young ancient curious fancy humble jolly kind mighty noble proud rusty
salty secret shy sleepy stormy sunny tidy upper lower northern southern eastern western velvet misty dusty""".split()

NOUNS = """house river mountain garden window door table chair book letter lamp clock bridge tower castle forest island boat ship
train car bicycle engine wheel hammer ladder basket bottle cup plate spoon knife apple orange banana lemon cherry potato
carrot bread cheese honey coffee tea river stone rock sand hill valley lake ocean beach cloud storm rain snow wind fire
smoke star moon sun planet rocket robot computer keyboard screen printer camera phone radio piano guitar violin drum
whistle ball kite puzzle dragon tiger lion elephant monkey rabbit horse donkey camel eagle owl parrot pigeon dolphin whale
shark turtle frog spider butterfly bee ant mouse fox wolf bear doctor teacher baker farmer pilot sailor painter singer
market school museum library station hotel village city country road street corner roof wall floor cellar attic kitchen
mirror blanket pillow jacket scarf hat shoe glove ring necklace coin ticket map compass lantern candle flag crown sword
shield arrow rope net anchor sail harbour lighthouse vault cabin barn fence gate well fountain statue bell capstan""".split()

VERBS = """walk run jump sing dance read write paint build carry open close push pull throw catch find lose give take bring send
watch listen speak laugh cry sleep wake cook eat drink wash clean plant grow cut fold paint drive ride sail fly swim climb
fall wait hurry rest play work learn teach help thank hope dream visit travel return begin finish""".split()

JOBS = """nurse doctor teacher baker farmer pilot sailor painter singer engineer lawyer cook gardener carpenter plumber
electrician programmer designer journalist librarian dentist architect mechanic tailor waiter dancer chemist biologist
photographer translator""".split()

ANIMALS = "dog cat horse rabbit parrot hamster goat pony turtle goldfish canary ferret donkey duck".split()
FOODS = "pizza pasta sushi curry soup salad bread cheese rice tacos noodles pancakes chocolate apples strawberries cake fish lentils".split()
PRODUCTS = """lamps chairs tables books pens notebooks mugs plates towels blankets pillows shirts shoes jackets hats gloves
keyboards monitors cables batteries phones cameras apples oranges lemons candles clocks mirrors tickets bicycles""".split()
COMPANIES = "Acme Globex Initech Umbrella Hooli Stark Wayne Northwind Contoso Fabrikam Bluebird Redwood Silverline Ironworks Sunrise".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
EVENTS = "concert meeting workshop wedding lecture exhibition party conference picnic race festival match seminar".split()
TOPICS = """the sea|love|autumn|cats|dogs|the moon|space|history|the French Revolution|World War II|ancient Rome|quantum physics|black
 holes|photosynthesis|gravity|DNA|evolution|climate change|the stock market|inflation|politics|football|tennis|the Olympics|
music|jazz|Mozart|Shakespeare|Napoleon|Einstein|Picasso|philosophy|religion|medicine|vaccines|headaches|cooking|chess|
machine learning|neural networks|blockchain|the internet|Linux|Python|JavaScript|Rust|SQL|sorting algorithms|recursion|
dinosaurs|volcanoes|whales|trees|robots|dragons|pirates|a brave knight|winter|spring|friendship|time travel|happiness|the
 meaning of life|taxes|cars|airplanes|trains|bridges|bread|coffee|wine|the ocean|Mars|the sun|bees|economics|art""".replace(
    "\n", ""
).split("|")

ONSETS = "b c d f g h j k l m n p r s t v w z br cl dr fl gr kr pl pr st tr sh ch th qu x y".split()
VOWELS = "a e i o u ai ea ou oo ei".split()
CODAS = ["", "", "", "n", "r", "s", "l", "m", "t", "k", "x", "nd", "rt", "ck"]

_GROUP = re.compile(r"\(([^()]*)\)")


def expand(template, rng):
    """Picks one alternative of each (a|b|c), the innermost first."""
    while True:
        found = _GROUP.search(template)
        if not found:
            return template
        template = template[: found.start()] + rng.choice(found[1].split("|")) + template[found.end() :]


def pseudo(rng, most=2):
    """A pronounceable word that nobody has seen, so that copying cannot be done from memory."""
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(rng.randint(1, most)))


def code(rng):
    """A code as people write them: digits, letters and digits, or groups with a dash."""
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    digits = lambda n: "".join(rng.choice("0123456789") for _ in range(n))
    kind = rng.randrange(5)
    if kind < 2:
        return rng.choice("123456789") + digits(rng.randint(2, 5))
    if kind == 2:
        return rng.choice(letters) + digits(rng.randint(1, 3))
    if kind == 3:
        return "".join(rng.choice(letters) for _ in range(rng.randint(2, 3))) + "-" + digits(rng.randint(2, 4))
    return pseudo(rng) + "-" + digits(2)


def name(rng):
    return rng.choice(NAMES) if rng.random() < 0.7 else pseudo(rng, 2).capitalize()


def full_name(rng):
    return f"{name(rng)} {rng.choice(SURNAMES) if rng.random() < 0.7 else pseudo(rng, 2).capitalize()}"


def city(rng):
    return rng.choice(CITIES) if rng.random() < 0.75 else pseudo(rng, 2).capitalize()


def word(rng):
    return rng.choice(rng.choice((NOUNS, ADJECTIVES, VERBS, COLOURS))) if rng.random() < 0.6 else pseudo(rng)


def thing(rng):
    """'blue lamp', 'old harbour', 'mistoran gate'."""
    return f"{rng.choice(rng.choice((COLOURS, ADJECTIVES))) if rng.random() < 0.85 else pseudo(rng)} {rng.choice(NOUNS)}"


def clock(rng):
    return f"{rng.randint(0, 23):02d}:{rng.choice(['00', '15', '30', '45'])}"


def email(rng):
    return f"{name(rng).lower()}@{rng.choice(['example.com', 'mail.org', 'acme.io', pseudo(rng) + '.net'])}"


def amount(rng):
    return rng.choice(["two", "three", "four", "five", "six", "seven", "ten", str(rng.randint(2, 90))])


SENTENCES = [
    lambda r: f"{name(r)} bought {amount(r)} {r.choice(PRODUCTS)} in {city(r)}.",
    lambda r: f"The {thing(r)} stands near the {thing(r)}.",
    lambda r: f"Every {r.choice(DAYS)} the {r.choice(JOBS)} likes to {r.choice(VERBS)} by the {r.choice(NOUNS)}.",
    lambda r: f"It was a {r.choice(ADJECTIVES)} day in {city(r)}.",
    lambda r: f"{name(r)} and {name(r)} went to the {r.choice(NOUNS)} together.",
    lambda r: f"A {thing(r)} is never far from a {r.choice(NOUNS)}.",
    lambda r: (
        f"In {r.choice(MONTHS)} we {r.choice(VERBS)} and {r.choice(VERBS)} until the {r.choice(NOUNS)} is {r.choice(ADJECTIVES)}."
    ),
    lambda r: f"Nobody knows why the {r.choice(NOUNS)} was {r.choice(COLOURS)}.",
    lambda r: f"The {r.choice(JOBS)} said that the {r.choice(NOUNS)} would be {r.choice(ADJECTIVES)}.",
    lambda r: f"There were {amount(r)} {r.choice(ANIMALS)}s behind the {thing(r)}.",
    lambda r: f"{name(r)} prefers {r.choice(FOODS)} to {r.choice(FOODS)}.",
    lambda r: f"The train from {city(r)} to {city(r)} takes {amount(r)} hours.",
    lambda r: f"{r.choice(ADJECTIVES).capitalize()} {r.choice(NOUNS)}s {r.choice(VERBS)} in the {r.choice(NOUNS)}.",
    lambda r: f"{pseudo(r).capitalize()} {pseudo(r)} {pseudo(r)} {pseudo(r)}.",
    lambda r: f"I have never seen a {thing(r)} in {city(r)}.",
    lambda r: "The quick brown fox jumps over the lazy dog.",
]
