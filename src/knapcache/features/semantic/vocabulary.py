"""Tables of English words for reading questions (words.py)."""

from __future__ import annotations


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _by_first(groups: str) -> dict[str, str]:
    """Return the first word of its group for each word."""
    return {word: words.split()[0] for words in groups.split("|") for word in words.split()}


def _groups(groups: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(words.split()) for words in groups.split("|"))


FUNCTION_WORDS = _listed("""
    a about above actually all also am an and any are as at be been being but by can could d did do does doing for from
    get give got had has have having he her here hers him his how i if in into is it its just kindly know let like ll
    m may me might mine must my need of on or our ours out over please possible re s shall she should show so some such
    t tell than that the their them then there these they this those to too under up us ve very want was we were what
    when where whether which while who whom whose why will with would you your yours""")
"""Words that carry little of a question's meaning. Negations and antonyms are compared by vetoes instead."""

HARMLESS_WORDS = _listed("""
    a actually am an any are as be been being could do does doing exactly for get give got has hello hey hi i is it its
    kindly know let of ok okay one our ours please possible really so tell thank thanks that the their then there those
    to us want we what which whether would you""")
"""Words that may differ between two wordings without a label of their own: checked by hand, and never more than this.
Not among them are quantifiers, modal verbs, conjunctions, possessives, tenses, prepositions that name a part, and other
question words. If nothing but these differs, the difference as a whole needs a label (`differences.substituted`)."""

INERT_WORDS = _listed("a an the please kindly hi hey hello ok okay thank thanks exactly really")
"""Words that change no question, wherever they stand."""

KEEPS_E = _listed("""
    artiste bathe breathe clothe envelope germane heroine humane locale loathe morale premiere rationale soothe swathe
    teethe urbane wreathe""")
"""Words that mean something else without their last letter, beside those of one syllable such as "plane"."""

MOVABLE = _listed("""
    a am an and are be can could did do does exactly how is just kindly may might must of please shall should so the
    then was were what when where which who why will would""")
"""Words that may stand elsewhere in the sentence: "what is the time" and "the time is what"."""

QUESTION_WORDS = _by_first("""
    how | what which name | when | where | who whom whose | why reason reasons""")

NEGATIONS = _by_first("""
    not no none nothing nobody nowhere neither nor unable | without except excluding lacking lack lacks unless |
    never | rarely hardly barely seldom | avoid avoids avoiding avoided prevent prevents preventing abstain refrain""")
NEGATING_PHRASES = (
    (r"(?:fails?|failed|failing|refuses?|refused|refusing) to", "not"),
    (r"(?:stay|keep|stays|keeps|staying|keeping) (?:away|clear|off)(?: from| of)?", "avoid"),
    (r"(?:get|gets|getting|got) rid", "rid"),
    (r"free (?:of|from)", "without"),
)
"""Phrases that negate, and the word that stands for them."""

NO_NEGATIONS = ("or not", "or no", "not know", "not remember", "not sure", "no idea", "not only", "not forget")
"""Phrases that do not negate the question: "I don't know why it rains" asks why it rains."""

_DIGITS = """
    zero|one once single first|two twice double second|three thrice triple third|four fourth quadruple|five fifth
    |six sixth|seven seventh|eight eighth|nine ninth|ten tenth|eleven eleventh|twelve twelfth|thirteen thirteenth
    |fourteen fourteenth|fifteen fifteenth|sixteen sixteenth|seventeen seventeenth|eighteen eighteenth
    |nineteen nineteenth|twenty twentieth"""
NUMBER_WORDS: dict[str, float] = {
    word: value for value, words in enumerate(_DIGITS.split("|")) for word in words.split()
}
MULTIPLICATIVES = _listed("single once double twice triple thrice quadruple twofold threefold")
ORDINALS = _listed("first second third") | {word for word in NUMBER_WORDS if word.endswith("th")}
"""Without the tens."""
NUMBER_WORDS |= {"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
_TENS = {word.removesuffix("y"): value for word, value in NUMBER_WORDS.items() if word.endswith("ty")}
NUMBER_WORDS |= {f"{word}ieth": value for word, value in _TENS.items()} | {"half": 0.5}
MULTIPLIERS = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
MULTIPLIERS |= {f"{word}s": value for word, value in MULTIPLIERS.items()}
SUFFIXES = {"k": 1000, "m": 10**6, "b": 10**9, "bn": 10**9}
"""Multipliers that follow digits: "10k"."""
DECADES = {f"{word}ies": int(value) for word, value in _TENS.items()}

NUMBERED_NOUNS = _listed("""
    war part type stage phase class chapter volume version act title level grade article section book step group
    category tier appendix mark round episode season generation division schedule vatican""")
"""Nouns that a Roman numeral follows, also in lower case."""

LETTERED_NOUNS = _listed("""
    type vitamin hepatitis influenza group class plan grade option part schedule category team model blood strain
    variant hemophilia factor section appendix point answer series""")
"""Nouns that a letter follows: "hepatitis a"."""

MONTHS = _by_first("""
    january jan | february feb | march | april apr | may | june jun | july jul | august aug | september sep sept |
    october oct | november nov | december dec""")
AMBIGUOUS_MONTHS = frozenset({"march", "may"})
BEFORE_MONTH = _listed("in of on by since until till during from to next last this early late mid before after")
WEEKDAYS = _listed("monday tuesday wednesday thursday friday saturday sunday")
FEASTS = _listed("christmas easter thanksgiving halloween ramadan eid diwali hanukkah passover")
RELATIVE_DAYS = _listed("today tonight tomorrow yesterday now currently nowadays weekend")

ANTONYMS = tuple(
    tuple(_listed(side) for side in line.split("|"))
    for line in """
    increase increases increasing increased raise raises raising raised boost grow growing gain gaining improve strengthen higher more maximize maximise expand upgrade accelerate | reduce reduces reducing reduced decrease decreases decreasing decreased lower lowers lowering lose losing cut less fewer weaken diminish minimize minimise shrink downgrade drop worsen
    enable enables enabling enabled activate activates activating activated activation | disable disables disabling disabled deactivate deactivates deactivating deactivated deactivation
    before | after
    on | off
    open opens opening opened reopen | close closes closing closed shut
    start starts starting started begin begins beginning began | stop stops stopping stopped end ends ending ended quit finish cancel cancels cancelling canceling cancelled canceled
    add adds adding added insert include includes including | remove removes removing removed delete deletes deleting deleted exclude excludes erase
    largest biggest greatest | smallest tiniest | oldest | newest youngest latest | highest tallest | lowest | longest | shortest | fastest quickest | slowest | cheapest | dearest priciest | richest wealthiest | poorest | hottest warmest | coldest coolest | strongest | weakest | heaviest | lightest | safest | deadliest | easiest simplest | hardest toughest | nearest closest | farthest furthest | best | worst
    large larger big bigger huge | small smaller tiny little
    old older | new newer young younger
    high tall taller | low short shorter
    long longer | short shorter brief
    good better | bad worse
    most | least fewest
    maximum max | minimum min
    first | last final
    fast faster quick quicker quickly | slow slower slowly
    hot hotter warm warmer | cold colder cool cooler
    cheap cheaper inexpensive affordable | expensive pricier costly
    rich richer wealthy | poor poorer
    early earlier | late later
    easy easier simple | hard harder difficult
    safe safer safely | dangerous unsafe risky
    healthy healthier | unhealthy
    strong stronger | weak weaker
    hard | soft
    heavy heavier | light lighter
    thick thicker | thin thinner
    wide wider | narrow narrower
    deep deeper | shallow
    full | empty
    wet | dry
    clean | dirty
    loud louder | quiet quieter silent
    bright brighter | dark darker dim
    happy happier | sad sadder unhappy
    love like | hate dislike
    buy buys buying bought purchase purchasing | sell sells selling sold
    borrow borrowing | lend lending
    send sends sending sent | receive receives receiving received
    push | pull
    win winning won winner | lose losing lost loser
    accept accepts accepting accepted | reject rejects rejecting rejected refuse decline declined
    allow allows allowing allowed permit permits | forbid forbidden prohibit prohibited deny denied block blocked ban banned
    approve approved | disapprove
    agree | disagree
    appear | disappear vanish
    connect connects connecting connected attach | disconnect disconnects disconnecting disconnected detach
    install installs installing installed | uninstall uninstalls uninstalling uninstalled
    lock locks locking locked | unlock unlocks unlocking unlocked
    encrypt encrypting encrypted encode | decrypt decrypting decrypted decode
    compress | decompress
    zip | unzip
    subscribe | unsubscribe
    follow | unfollow
    mute | unmute
    hide hiding hidden | show showing shown reveal
    freeze frozen | thaw unfreeze melt
    upload uploading | download downloading
    import importing imports | export exporting exports
    login | logout
    arrive arrives arriving arrival | depart departs departing departure leave leaves leaving
    enter | exit leave
    inside indoor indoors interior internal | outside outdoor outdoors exterior external
    above over | below under underneath
    left | right
    north northern | south southern
    east eastern | west western
    positive | negative
    legal lawful | illegal unlawful
    possible | impossible
    true | false
    valid | invalid
    correct | incorrect wrong
    visible | invisible
    complete | incomplete
    equal | unequal
    public | private
    major | minor
    male man men boy | female woman women girl
    father dad | mother mom mum
    husband | wife
    brother | sister
    son | daughter
    alive | dead
    advantage advantages pro pros benefit benefits strengths | disadvantage disadvantages con cons drawback drawbacks weaknesses
    cause causes | prevent prevents avoid cure
    always | never | sometimes occasionally
    all every entire | some several certain few | most
    only solely exclusively | also additionally even
    must mandatory obligatory compulsory | may optional permitted might voluntary
    did was were had | will shall
    since | until till
    inner | outer
    morning mornings | afternoon afternoons | evening evenings | night nights | noon midday | midnight
    spring springtime | summer summertime | autumn fall | winter wintertime
    thicken thickens thickening | thin thins thinning
    tighten tightens tightening | loosen loosens loosening
    attract attracts attracting | repel repels repelling
    merge merges merging merged | split splits splitting
    marry marries marrying | divorce divorces divorcing
    dilate dilates dilating | constrict constricts constricting
    landlord landlords lessor | tenant tenants lessee
    lender lenders | borrower borrowers
    buyer buyers | seller sellers
    fixed | variable adjustable
    guilty | innocent
    gain gains | loss losses
    free | paid
    friend friends ally | enemy enemies
    live lives living | die dies dying
    above | beneath
    harmful | harmless beneficial
    ancient | modern
    deposit depositing deposited | withdraw withdrawing withdrew withdrawal
    debit | credit
    pass passed | fail failed
    ascending | descending
    input | output
    plus | minus
    multiply | divide
    wake | sleep
    sunrise | sunset
    breakfast | lunch | dinner supper
    """.strip().splitlines()  # noqa: E501
)
"""Sides of opposites. A side may stand in several lines."""

WEAK_SIDES = _listed("""
    also certain did even fall few free had hard light like may might more most night on over right
    several shall short show spring under was were will with""")
"""Words of sides that also have another sense. They count only against a word of the opposite side."""

ANTONYM_SIDES: dict[str, tuple[tuple[int, int], ...]] = {}
"""The sides of each word: the line in ANTONYMS, and the number of the side."""
for _line, _sides in enumerate(ANTONYMS):
    for _side, _words in enumerate(_sides):
        for _word in _words:
            ANTONYM_SIDES[_word] = (*ANTONYM_SIDES.get(_word, ()), (_line, _side))

YES_NO_MODALS = {
    word: kind
    for kind, words in {
        "duty": "must", "advice": "should ought", "permission": "can may could might", "future": "will shall",
        "past": "did was were had",
    }.items()
    for word in words.split()
}  # fmt: skip
"""First words of a yes-or-no question that ask for different things."""

ROLES = _listed("from into than over versus vs before after against instead")
"""Words whose following word has a part of its own in the question: "from Rome to Oslo" is not "from Oslo to Rome"."""

CONTRAST_PREFIXES = _groups("""
    hyper hypo | inter intra | pre post ante | over under | micro macro | in ex out | im ex em | en de | up down
    | pro anti con contra | mono poly di bi tri uni multi quad | homo hetero | endo exo ecto | infra ultra | in de
    | as des | sub super | fore back hind | cis trans | ortho meta para | max min | con di | af ef | acid alkal
    | pro re | front rear | east west | north south | hemi quadri para | cryo thermo | oligo poly | brady tachy""")
"""Beginnings that give the same word opposite or other senses: hypertension, hypotension."""
NEGATING_PREFIXES = _listed("un in im il ir non dis de mis anti counter mal a an ab")
CONTRAST_SUFFIXES = _groups("""
    er or ee | ful less | ite ate ide | ane ene yne ine | phile phobe | philia phobia | or ress""")
"""Endings that do: employer, employee."""

COMMON_WORDS = FUNCTION_WORDS | _listed("""
    account after again against another are aren ask available back balance bank because become before begin best
    better between big bill book both buy call can cannot card change check city code compare convert cost couldn
    country date day describe didn different doesn don each easy email end every example explain fast few find first
    food free generate good great hadn hard hasn haven help high home idea important isn job kind language large
    last learn leave less life list live long look lot low made main make many mean meaning means money more most
    much name near never new next no not now number off often old once one only open order other own part pay people
    phone place play price problem product put read real reset right run same say schedule see send set short
    shouldn sign simple since small song speak start still stop story summarize summary take talk text thanks thing
    think time today tomorrow top translate translation travel true try turn two type update use used using value
    wait wasn way weather week well weren without won word words work world wouldn write year yes""")
"""Frequent English words, which tell that a text is in English."""
AMBIGUOUS_WORDS = _listed("a am an as at do he i in is me no on or so to was will")
"""Those that are frequent in another language as well."""

FOREIGN_WORDS = _listed("""
    aan apa att au auf aux avec bagaimana bei bir bu ce ces cette che chi co com combien comment como con cual
    cuales cuanta cuanto cuál cuáles cuándo cuánto czy cómo da dan dans das de dei del della delle dem dengan der
    des det di donde dos du dónde een ein eine einem einen einer el elle em en er eres es est esta está están et eu
    för für gdzie gibt gli hay het hij hoch hoe hoeveel hur ich ihr ik il ile ils im ini inte ist itu için jag jak
    je jest jij kan kann kaç kde kdo kdy kiedy kostet la las le les lo los ma med mein meine mes met meu mi mia mijn
    minha mio mit mitt mon muy más naar nas nasıl ne nedir nel nella nerede neresi nicht nie niet non nos nous não
    när och onde os où para pas perché pero por porque posso pour pourquoi proč puedo på quale quali quand quando
    quanta quanto que quel quelle quelles quels quem qui quiero quién qué saya sie sind się sono sont soy su sur são
    till tu um uma umas un una unas und une uno unos uns untuk van varför ve vem você von voor vous waar waarom wann
    wanneer warum wat welche welcher welches welk welke wer wie wieviel wij wir wo yang zij zu zum zur är è é""")
"""Frequent words of Spanish, French, German, Italian, Portuguese, Dutch, Swedish, Czech, Polish, Turkish, Indonesian.
Without those that are also English words."""
