"""Memories, and questions of which it is known what answers them: labelled evidence, made of lists.

Of each of 30 people there is a memory of each of 20 topics, worded in one of two ways; a fifth of them have a question
that is worded otherwise: only the name and the topic's meaning lead to it. 200 others are told apart by a number alone,
which their questions name. 40 have no word in common with their questions but such as "is" and "the". As in a
conversation, each stands among three to seven sentences that answer nothing.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

_PEOPLE: Final = (
    *("Ann Becker", "Bob Castle", "Carla Dahl", "David Eco", "Eva Falk", "Frank Gold", "Greta Holm", "Hugo Iversen"),
    *("Ines Jung", "Jonas Kraft", "Klara Lund", "Liam Moore", "Mona Nagel", "Nils Otter", "Olga Petrov", "Paul Quist"),
    *("Quinn Rossi", "Rosa Stein", "Sven Thorn", "Tara Urban", "Ulf Vogel", "Vera Winter", "Wim Xander", "Yara Young"),
    *("Zoe Adler", "Amir Blom", "Bela Costa", "Cora Dietz", "Dino Ernst", "Elsa Frey"),
)
# Of each topic two ways in which it is told, with values, and a question.
_TOPICS: Final[tuple[tuple[str, str, str, tuple[str, ...]], ...]] = (
    ("{} gets a rash from {}.", "{} must not eat {}.", "Which food is {} allergic to?", ("peanuts", "shrimp", "eggs")),
    (
        "{} is employed at {}.",
        "{} earns a salary from {}.",
        "What is the job of {}?",
        ("a bank", "a school", "an airline"),
    ),
    ("{} moved into a flat in {}.", "{} rents rooms in {}.", "Where does {} live?", ("Oslo", "Porto", "Graz")),
    (
        "{} goes to the office by {}.",
        "{} takes the {} each morning.",
        "How does {} commute?",
        ("tram", "bicycle", "ferry"),
    ),
    ("{} married in {}.", "{} had a wedding in {}.", "When is the anniversary of {}?", ("June", "May", "October")),
    ("{} keeps a {}.", "{} feeds a {} twice a day.", "Which pet does {} have?", ("parrot", "spaniel", "tortoise")),
    (
        "{} practises the {}.",
        "{} gives concerts on the {}.",
        "Which instrument does {} play?",
        ("cello", "oboe", "harp"),
    ),
    (
        "{} cheers for {}.",
        "{} never misses a match of {}.",
        "Which team does {} support?",
        ("Ajax", "Celtic", "Benfica"),
    ),
    (
        "{} flies to {} in summer.",
        "{} has booked a hotel in {}.",
        "Where does {} go on holiday?",
        ("Crete", "Malta", "Bali"),
    ),
    (
        "{} takes {} before bed.",
        "{} swallows {} each evening.",
        "Which medicine does {} need?",
        ("insulin", "aspirin", "iron"),
    ),
    (
        "{} grew up speaking {}.",
        "{} talks {} at home.",
        "What is the mother tongue of {}?",
        ("Finnish", "Greek", "Urdu"),
    ),
    ("{} drives a {}.", "{} parks a {} outside.", "Which car does {} own?", ("Volvo", "Fiat", "Skoda")),
    (
        "{} orders {} every time.",
        "{} cannot start without {}.",
        "What does {} like to drink?",
        ("espresso", "mint tea", "cider"),
    ),
    ("{} is reading {}.", "{} is in the middle of {}.", "Which book does {} read?", ("Dracula", "Emma", "Ulysses")),
    (
        "{} is scared of {}.",
        "{} panics at the sight of {}.",
        "What is {} afraid of?",
        ("spiders", "heights", "needles"),
    ),
    ("{} pays by {}.", "{} settles bills with {}.", "Which payment does {} prefer?", ("cash", "cheque", "voucher")),
    (
        "{} studied {}.",
        "{} has a degree in {}.",
        "Which subject did {} learn at university?",
        ("law", "botany", "physics"),
    ),
    (
        "{} paints walls {}.",
        "{} wears {} all the time.",
        "What is the favourite colour of {}?",
        ("green", "purple", "grey"),
    ),
    (
        "{} phones on {}.",
        "{} can be called on {}.",
        "Which day suits {} for a meeting?",
        ("Monday", "Friday", "Sunday"),
    ),
    ("{} has a brother in {}.", "{} visits a sister in {}.", "Where are the siblings of {}?", ("Rome", "Lyon", "Cork")),
)
_PROBLEMS: Final = (
    "payment was refused",
    "parcel came late",
    "password was reset",
    "refund was sent",
    "label was torn",
)
_MEANINGS: Final = (
    ("She swims forty lengths before breakfast.", "What sport keeps the user fit?"),
    ("He cannot stand mushrooms on pizza.", "Which toppings should be left out of dinner?"),
    ("Their twins start kindergarten after Easter.", "How old are the children?"),
    ("Turn the heating down at night.", "What temperature for the bedroom?"),
    ("Her glasses broke last week.", "Did an optician get visited?"),
    ("Please answer in short bullet points.", "How long should replies be?"),
    ("The landlord wants the keys back on Tuesday.", "When must the apartment be vacated?"),
    ("He limps since the skiing accident.", "Any injuries to the leg?"),
    ("She sold her shares before the crash.", "What investments exist on the stock market?"),
    ("No calls after eight, please.", "How late may someone be telephoned?"),
    ("Grandma bakes rye bread.", "Who in the family makes loaves?"),
    ("He forgot the umbrella on the train.", "Which item got lost while travelling?"),
    ("The garden is full of roses.", "What flowers grow in the yard?"),
    ("She votes for the Greens.", "Which political party gets supported?"),
    ("He snores, and sleeps badly.", "Are nights restful?"),
    ("The laptop's battery dies within an hour.", "What is wrong with the computer?"),
    ("She is saving for a sailing boat.", "What big purchase of a ship gets planned?"),
    ("He quit smoking last winter.", "Does anyone still use cigarettes?"),
    ("They adopted a kitten from a shelter.", "Which animals are in the household?"),
    ("She teaches yoga to beginners.", "What fitness class gets given?"),
    ("He plays chess online until midnight.", "Which board games are enjoyed?"),
    ("Her thesis is about glaciers.", "What academic research on ice was done?"),
    ("He votes by mail from abroad.", "How are elections attended?"),
    ("The roof leaks when it rains.", "What house repairs are necessary?"),
    ("She hates crowded beaches.", "What kind of seaside vacation to avoid?"),
    ("He prefers windows over aisles on planes.", "Which airline seat to reserve?"),
    ("Their car failed its inspection.", "Is that vehicle roadworthy?"),
    ("She donates blood twice a year.", "Any charity or medical giving?"),
    ("He is vegan since March.", "What diet regarding meat and milk?"),
    ("Our office closes at noon on Fridays.", "Work hours before weekends?"),
    ("She dreams of seeing the northern lights.", "Which arctic trip would delight?"),
    ("He collects stamps from Asia.", "What hobby involves postage?"),
    ("The baby wakes up at five.", "When does an infant rise each morning?"),
    ("She wrote a novel under another name.", "Has any fiction been published with a pseudonym?"),
    ("He owes his uncle two thousand euros.", "Are there debts to relatives?"),
    ("Their fence blew over during the storm.", "What damage did wind cause?"),
    ("She needs subtitles to follow films.", "Is hearing impaired when watching movies?"),
    ("He tips generously in restaurants.", "How much gratuity for waiters?"),
    ("The choir rehearses in the chapel.", "Where do singers meet to practise?"),
    ("She retires when she turns sixty.", "At what age does employment end?"),
)
_TALK: Final = (
    *("Sorry that I am late again.", "Thanks for asking, all is well here.", "Let me think about it for a moment."),
    *("The weather is awful today.", "I had too much cake yesterday.", "That was a funny film, by the way."),
    *(
        "Say hello to everybody.",
        "My phone is nearly empty.",
        "I will write more tomorrow.",
        "What a week it has been.",
    ),
    *(
        "We should meet for lunch soon.",
        "The meeting went on for hours.",
        "I still have to wash up.",
        "Traffic was bad.",
    ),
    *("I found an old photo of us.", "The neighbours are having a party.", "Could you send me that link once more?"),
    *("It is good to hear from you.", "I slept until noon.", "The train was full, as always.", "Time flies."),
    *("I finally cleaned the kitchen.", "Remind me to call the plumber.", "There is a new cafe around the corner."),
    *("I lost my keys and found them.", "My sister sends her love.", "Do you remember the old teacher?"),
    *("The shop had nothing left.", "I ought to go to bed earlier.", "We watched the fireworks from the roof."),
)


class Question(NamedTuple):
    """A question.

    Attributes:
        kind: `person`, `number` or `meaning`: what leads to its memory.
        text: The question.
        answers: The keys of the memories that answer it.
    """

    kind: str
    text: str
    answers: frozenset[str]


class Evidence(NamedTuple):
    """Memories by key, and questions."""

    memories: dict[str, str]
    questions: list[Question]

    def half(self, number: int) -> Evidence:
        """Return every second question: what is chosen by one half is measured by the other."""
        return Evidence(self.memories, self.questions[number::2])


def made_evidence() -> Evidence:
    """Return the evidence, the same at each call."""
    chosen, memories, questions = random.Random(11), {}, []
    for person in _PEOPLE:
        for number, (first, second, question, values) in enumerate(_TOPICS):
            key = f"{person} {number}"
            memories[key] = chosen.choice((first, second)).format(person, chosen.choice(values))
            if chosen.random() < 0.2:
                questions.append(Question("person", question.format(person.split()[0]), frozenset({key})))
    for _ in range(200):
        order = f"{chosen.choice('ABCDEFGH')}{chosen.randrange(10_000, 99_999)}"
        memories[order] = f"Order {order}: the {chosen.choice(_PROBLEMS)}."
        questions.append(Question("number", f"What happened with order {order}?", frozenset({order})))
    for number, (memory, question) in enumerate(_MEANINGS):
        memories[f"meaning {number}"] = memory
        questions.append(Question("meaning", question, frozenset({f"meaning {number}"})))
    for key, memory in memories.items():
        sentences = [memory, *chosen.sample(_TALK, chosen.randrange(3, 8))]
        chosen.shuffle(sentences)
        memories[key] = " ".join(sentences)
    chosen.shuffle(questions)
    return Evidence(memories, questions)
