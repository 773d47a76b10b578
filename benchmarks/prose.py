"""Text that reads and compresses like English prose, made from a fixed vocabulary and a seed.

The vocabulary is a list of stems with their regular derivations, drawn by Zipf's law, and sentences carry names,
figures and dates. `python -m benchmarks.prose` prints how well it compresses.
"""

from __future__ import annotations

import random
import sys
import zlib
from functools import cache
from itertools import accumulate

_FUNCTION_WORDS = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its "
    "about than into them can only other some could these two may first then do any like my now over such our me even "
    "most after also did many off before must well back through where much your way down should because long each "
    "just those"
)
_VERBS = (
    "accept adjust agree allow answer appear apply approach argue arrange arrive ask attend avoid balance behave "
    "borrow breathe build call cancel carry change charge check claim clean clear climb collect combine compare "
    "complain confirm connect consider contain continue convert cook count cover create cross damage decide deliver "
    "demand depend describe design develop differ discover discuss divide doubt earn employ enter escape examine "
    "exchange expect explain explore express extend fasten finish follow force form gather govern grow guard guess "
    "handle happen help hope hunt imagine improve include increase inform insist inspect invent invite join judge "
    "jump knock land laugh lead learn lift listen load look manage march mark match measure mention move murmur "
    "notice number obey object observe obtain offer open order paint pass pause pay perform plan plant point polish "
    "predict prefer prepare press print produce promise protect prove publish pull push question raise reach read "
    "receive recommend record reduce refuse regret release remain remember remove repair repeat reply report request "
    "rescue rest return reveal search select separate serve settle share shorten signal smile solve sort sound start "
    "stay store stretch suffer suggest supply support suppose surprise surround suspect switch talk taste teach tend "
    "test thank touch trace trade train travel treat trust turn understand unite use visit vote wait walk wander warn "
    "wash watch wonder work worry"
)
_NOUNS = (
    "account airport apple archive arm autumn bakery barrel basin battery beach bell bench bicycle bird blanket boat "
    "border bottle branch bread bridge broker bucket budget building bundle cabin calendar camera canal candle "
    "captain cargo carpet castle cattle ceiling chain chamber channel chapter chimney church circle citizen clerk "
    "climate cloud coast coffee colony column committee compass concert contract corner cottage cotton council "
    "country courier crane crowd culture currency curtain customer dairy daughter debate decade desert dialogue "
    "dinner district doctor dollar dozen dragon drawer editor election elephant empire engine envelope episode "
    "equator estate evening factory farmer feather festival fever fiction finger flavour flight flour forest fortune "
    "fountain freight furniture garden garlic gallery gentleman glacier grammar granite harbour harvest hedge helmet "
    "highway horizon hospital hotel hunger industry insect invoice island jacket jewel journal journey jury kettle "
    "kingdom kitchen ladder lantern leather lecture legend lemon letter library lobby locker machine magazine magnet "
    "marble margin market meadow medal melody merchant mirror mission molecule monument morning mountain museum "
    "muscle mystery needle neighbour notebook novel ocean office orchard orchestra organ owner packet palace panel "
    "paragraph passenger pattern pencil pepper petrol physics pigeon pilot planet plaster pocket poem police portrait "
    "pottery prairie prison profit province pyramid quarry quarter railway receipt region reservoir ribbon river "
    "rocket sailor salary satellite scholar season secret sentence shadow shelter shoulder silver sister soldier "
    "spider station statue stomach summer surface symptom tailor telephone temple theatre thunder ticket timber "
    "tobacco tower tunnel umbrella uniform valley vessel village violin volcano voyage warehouse weather wheel "
    "whisper widow window winter witness workshop"
)
_ADJECTIVES = (
    "able ancient anxious bitter blank bold brave brief bright broad calm careful cheap clever coarse cold common "
    "cruel curious dense distant double dull eager early elegant empty equal exact faint famous fertile fierce firm "
    "flat fresh gentle grand hollow honest humble idle large loose loud mature mild modern moist narrow neat noble "
    "odd pale patient plain polite proud quick quiet rapid rare remote rigid rough sacred severe shallow sharp silent "
    "slender slow smooth solid stable steep stern strange strict sudden sweet tender thick thin tidy tired vague vast "
    "vivid warm weak wide wild wise young"
)
_NAMES = (
    "Ada Amara Anders Bela Carmen Chen Dagny Emeka Farid Greta Hiro Ines Jonas Kavya Leila Marek Nadia Olga Pavel "
    "Quentin Rosa Samir Tomas Uma Vera Wanda Xavier Yusuf Zofia Lisbon Nairobi Osaka Quito Tallinn Utrecht Verona "
    "Winnipeg"
)


@cache
def _vocabulary() -> tuple[list[str], list[float]]:
    words = [
        *_NOUNS.split(),
        *(f"{noun}s" for noun in _NOUNS.split()),
        *(form for verb in _VERBS.split() for form in _forms(verb)),
        *_ADJECTIVES.split(),
        *(f"{adjective}ly" for adjective in _ADJECTIVES.split()),
        *(f"{adjective}ness" for adjective in _ADJECTIVES.split()),
        *_NAMES.split(),
    ]
    random.Random(1).shuffle(words)
    words = [*_FUNCTION_WORDS.split(), *words]
    return words, list(accumulate(1 / (rank + 2.7) for rank in range(1, len(words) + 1)))


def _forms(verb: str) -> list[str]:
    stem = verb[:-1] if verb.endswith("e") else verb
    return [verb, f"{verb}s", f"{stem}ed", f"{stem}ing", f"{stem}er", f"re{verb}"]


def prose(rng: random.Random, size: int) -> str:
    """About `size` bytes of text: whole sentences, at most a few words over or under."""
    words, weights = _vocabulary()
    sentences: list[str] = []
    left = size
    while left > 0:
        sentence = rng.choices(words, cum_weights=weights, k=rng.randint(6, 22))
        extra = rng.random()
        if extra < 0.25:
            sentence.insert(rng.randrange(len(sentence)), f"{rng.randint(2, 99_999):,}")
        elif extra < 0.35:
            sentence.insert(
                rng.randrange(len(sentence)), f"{rng.randint(1, 28)}/{rng.randint(1, 12)}/{rng.randint(1990, 2030)}"
            )
        if len(sentence) > 12:
            middle = rng.randrange(4, len(sentence) - 4)
            sentence[middle] += rng.choice((",", ",", ";", " -"))
        text = " ".join(sentence)
        text = f"{text[0].upper()}{text[1:]}{rng.choice('....?!')}"
        sentences.append(text)
        left -= len(text) + 1
    return " ".join(sentences)[:size].rstrip()


def main() -> int:
    """Print the compressibility of one message and of a long text."""
    rng = random.Random(7)
    for size in (600, 64 * 1024):
        text = prose(rng, size).encode()
        sys.stdout.write(f"{size} bytes of text: deflate 1:{len(text) / len(zlib.compress(text, 6)):.2f}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
