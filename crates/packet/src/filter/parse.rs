//! How is a text read as libpcap's `grammar.y` reads it?
//!
//! By recursive descent. Two things are peculiar in that grammar. An identifier without qualifiers
//! has those of the identifier before it (`port 80 or 443`); they are passed on through
//! parentheses, and a primitive that takes no qualifiers ends them. And an opening parenthesis may
//! begin an expression, identifiers or arithmetic, which shows only later: so the smallest [`Unit`]
//! is one of these.
//!
//! What keys an expression has is not here, but in `plan.rs`.

use std::mem;

use super::identifier::escaped;
use super::scan::{Placed, Token, tokens};
use super::{
    Arithmetic, Direction, Expression, Kind, Leaf, Node, NotUnderstood, Protocol, Qualifiers,
};

/// How many nodes may stand inside each other.
const DEPTH: usize = 50;
/// How many operators one relation may have, with signs and brackets.
const OPERATORS: usize = 32;
/// How many parentheses, negations and operands may stand inside each other. The printed form may
/// have two for each node and operator.
const NESTING: usize = 2 * (DEPTH + OPERATORS) + 10;

/// Reads a filter expression.
///
/// # Errors
/// If the text is no expression, or one of a form that is not known here; libpcap may know that
/// form. The empty text, which for libpcap is a filter that takes every packet, is an error here.
pub fn parse(text: &str) -> Result<Expression, NotUnderstood> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0, end: text.len(), nesting: 0, operators: 0 };
    match parser.list(None)? {
        Unit::Term(part) if parser.peek().is_none() => Ok(Expression(part.node)),
        Unit::Term(_) => parser.fail("neither 'and' nor 'or'"),
        _ => parser.fail("not a primitive"),
    }
}

pub(super) type Parsed<T> = Result<T, NotUnderstood>;

pub(super) struct Parser<'a> {
    tokens: &'a [Placed<'a>],
    at: usize,
    /// Length of the text.
    end: usize,
    nesting: usize,
    operators: usize,
}

struct Part {
    node: Node,
    /// Qualifiers for identifiers that follow; `None` where there are none to pass on.
    qualifiers: Option<Qualifiers>,
    depth: usize,
}

impl Part {
    fn leaf(leaf: Leaf, qualifiers: Option<Qualifiers>) -> Box<Self> {
        Box::new(Self { node: Node::Leaf(leaf), qualifiers, depth: 1 })
    }
}

/// What was read so far. It is small, because there are many on the stack where they are nested.
enum Unit {
    /// An expression.
    Term(Box<Part>),
    /// Identifiers that have the qualifiers of an identifier before them.
    Identifiers(Box<Part>),
    /// A number, which may be an identifier or an operand.
    Number(u32),
    Operand(Arithmetic),
}

/// Expressions.
impl Parser<'_> {
    /// Reads units with `and` and `or` between them. `inherited` are the qualifiers of an
    /// identifier that has none itself.
    fn list(&mut self, inherited: Option<Qualifiers>) -> Parsed<Unit> {
        let first = self.unit(inherited)?;
        if !matches!(self.next_word(), Some("and" | "or")) {
            return Ok(first);
        }
        let (mut list, are_terms) = match first {
            Unit::Term(part) => (part, true),
            first => (self.identifiers(first, inherited)?, false),
        };
        while let Some(word) = self.takes_one(&["and", "or"]) {
            let inherited = list.qualifiers;
            let right = match self.unit(inherited)? {
                Unit::Term(part) if are_terms => part,
                right => self.identifiers(right, inherited)?,
            };
            self.join(&mut list, word, *right)?;
        }
        Ok(if are_terms { Unit::Term(list) } else { Unit::Identifiers(list) })
    }

    fn join(&self, list: &mut Part, word: &str, right: Part) -> Parsed<()> {
        list.depth = list.depth.max(right.depth + 1);
        list.qualifiers = right.qualifiers;
        match (&mut list.node, word) {
            (Node::And(nodes), "and") | (Node::Or(nodes), "or") => nodes.push(right.node),
            (left, _) => {
                let left = mem::replace(left, Node::And(Vec::new()));
                let nodes = vec![left, right.node];
                list.node = if word == "and" { Node::And(nodes) } else { Node::Or(nodes) };
                list.depth += 1;
            }
        }
        self.bound(list)
    }

    fn negate(&self, part: &mut Part) -> Parsed<()> {
        let positive = mem::replace(&mut part.node, Node::And(Vec::new()));
        part.node = Node::Not(Box::new(positive));
        part.depth += 1;
        self.bound(part)
    }

    fn bound(&self, part: &Part) -> Parsed<()> {
        if part.depth > DEPTH { self.fail("it is nested too deep") } else { Ok(()) }
    }

    /// Calls `read`, which may call this function again, and counts how deep the calls are nested.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.nesting += 1;
        if self.nesting > NESTING {
            return self.fail("it is nested too deep");
        }
        let result = read(self);
        self.nesting -= 1;
        result
    }

    fn unit(&mut self, inherited: Option<Qualifiers>) -> Parsed<Unit> {
        let is_load = matches!(self.tokens.get(self.at + 1), Some((Token::Word("["), _)));
        let unit = match self.peek() {
            Some(Token::Word("not")) => self.nested(|parser| parser.negation(inherited))?,
            Some(Token::Word("(")) => self.nested(|parser| parser.parenthesis(inherited))?,
            Some(Token::Number(number)) => {
                self.at += 1;
                Unit::Number(number)
            }
            Some(Token::Word("len" | "-")) => Unit::Operand(self.operand()?),
            Some(Token::Protocol(_)) if is_load => Unit::Operand(self.operand()?),
            _ => self.primitive(inherited)?,
        };
        self.relation(unit)
    }

    fn negation(&mut self, inherited: Option<Qualifiers>) -> Parsed<Unit> {
        self.at += 1;
        match self.unit(inherited)? {
            Unit::Term(mut part) => {
                self.negate(&mut part)?;
                Ok(Unit::Term(part))
            }
            unit => {
                let mut part = self.identifiers(unit, inherited)?;
                self.negate(&mut part)?;
                Ok(Unit::Identifiers(part))
            }
        }
    }

    fn parenthesis(&mut self, inherited: Option<Qualifiers>) -> Parsed<Unit> {
        self.at += 1;
        let mut inside = self.list(inherited)?;
        self.expect(")", "not in these parentheses")?;
        if let Unit::Term(part) = &mut inside {
            part.qualifiers = inherited;
        }
        Ok(inside)
    }

    /// Reads the relation whose first operand `unit` is; `unit` itself where there is none.
    fn relation(&mut self, unit: Unit) -> Parsed<Unit> {
        let left = match unit {
            Unit::Number(number) if self.is_at_operator() => Arithmetic::Number(number),
            Unit::Operand(operand) => operand,
            unit => return Ok(unit),
        };
        let left = self.operations(left, None)?;
        let Some(comparison) = self.takes_one(COMPARISONS) else { return Ok(Unit::Operand(left)) };
        let right = self.arithmetic()?;
        self.operators = 0;
        Ok(Unit::Term(Part::leaf(Leaf::Relation { left, comparison, right }, None)))
    }

    fn is_at_operator(&self) -> bool {
        self.next_word().is_some_and(|word| COMPARISONS.contains(&word) || level(word).is_some())
    }

    fn identifiers(&self, unit: Unit, qualifiers: Option<Qualifiers>) -> Parsed<Box<Part>> {
        match (unit, qualifiers) {
            (Unit::Identifiers(part), _) => Ok(part),
            (Unit::Number(number), Some(known)) => {
                Ok(Part::leaf(self.numbered(known, number)?, qualifiers))
            }
            (Unit::Number(_), None) => self.fail("nothing says what the number is of"),
            (Unit::Term(_) | Unit::Operand(_), _) => self.fail("not an identifier"),
        }
    }
}

const COMPARISONS: &[&str] = &["=", "!=", "<", "<=", ">", ">="];

/// Returns how tightly an operator binds: 0 for operators to which the grammar gives no precedence.
fn level(operator: &str) -> Option<u8> {
    match operator {
        "%" | "^" => Some(0),
        "|" => Some(1),
        "&" => Some(2),
        "<<" | ">>" => Some(3),
        "+" | "-" => Some(4),
        "*" | "/" => Some(5),
        _ => None,
    }
}

/// How tightly the sign before an operand binds.
const SIGN: u8 = 6;

/// Arithmetic.
impl Parser<'_> {
    fn arithmetic(&mut self) -> Parsed<Arithmetic> {
        let first = self.operand()?;
        self.operations(first, None)
    }

    /// Reads the operators behind `left` as far as they bind tighter than the operator before
    /// `left`, which is of the level `before`. Where one of two operators has no precedence, it
    /// reads on, as a parser made by yacc does.
    fn operations(&mut self, mut left: Arithmetic, before: Option<u8>) -> Parsed<Arithmetic> {
        while let Some(operator) = self.next_word()
            && let Some(level) = level(operator)
            && before.is_none_or(|before| before == 0 || level == 0 || level > before)
        {
            self.at += 1;
            self.count_operator()?;
            let right = self.operand()?;
            let right = self.operations(right, Some(level))?;
            left = Arithmetic::Binary { left: Box::new(left), operator, right: Box::new(right) };
        }
        Ok(left)
    }

    fn count_operator(&mut self) -> Parsed<()> {
        self.operators += 1;
        if self.operators > OPERATORS { self.fail("it has too many operators") } else { Ok(()) }
    }

    fn operand(&mut self) -> Parsed<Arithmetic> {
        self.nested(|parser| match parser.next()? {
            Token::Number(number) => Ok(Arithmetic::Number(number)),
            Token::Word("len") => Ok(Arithmetic::Length),
            Token::Word("-") => {
                parser.count_operator()?;
                let first = parser.operand()?;
                let operand = parser.operations(first, Some(SIGN))?;
                Ok(Arithmetic::Negative(Box::new(operand)))
            }
            Token::Word("(") => {
                let inside = parser.arithmetic()?;
                parser.expect(")", "not in these parentheses")?;
                Ok(inside)
            }
            Token::Protocol(protocol) => {
                parser.expect("[", "a protocol is no operand")?;
                parser.count_operator()?;
                let at = Box::new(parser.arithmetic()?);
                let bytes = if parser.takes(":") { parser.number()? } else { 1 };
                parser.expect("]", "not in these brackets")?;
                Ok(Arithmetic::Load { protocol, at, bytes })
            }
            _ => parser.refuse("not an operand"),
        })
    }
}

/// Primitives.
impl Parser<'_> {
    fn primitive(&mut self, inherited: Option<Qualifiers>) -> Parsed<Unit> {
        let first = self.next()?;
        let protocol = if let Token::Protocol(protocol) = first {
            Some(protocol)
        } else {
            self.at -= 1;
            None
        };
        if self.next_word().is_some_and(is_qualifier) {
            return self.nested(|parser| parser.qualified(protocol));
        }
        match (first, inherited) {
            (Token::Protocol(_) | Token::Word(_), _) => {
                let leaf = self.unqualified(protocol)?;
                Ok(Unit::Term(Part::leaf(leaf, None)))
            }
            (_, Some(qualifiers)) => {
                let leaf = self.identifier(qualifiers)?;
                Ok(Unit::Identifiers(Part::leaf(leaf, inherited)))
            }
            (_, None) => self.fail("nothing says what kind of thing this is"),
        }
    }

    /// Reads a primitive without identifiers, or one that has them in a form of its own. `protocol`
    /// stands before it.
    fn unqualified(&mut self, protocol: Option<Protocol>) -> Parsed<Leaf> {
        let with_words = ["multicast", "type", "subtype", "dir", "direction"];
        if self.takes("broadcast") {
            return Ok(Leaf::Broadcast(protocol));
        }
        if let Some(protocol) = protocol {
            return match self.next_word() {
                Some(word) if with_words.contains(&word) => {
                    self.words(Some(protocol)).map(Leaf::Words)
                }
                _ => Ok(Leaf::Protocol(protocol)),
            };
        }
        match self.takes_one(&["vlan", "mpls", "pppoed", "pppoes", "geneve"]) {
            Some("vlan") => Ok(Leaf::Vlan(self.optional_number(0xfff)?)),
            Some("mpls") => Ok(Leaf::Mpls(self.optional_number(0xf_ffff)?)),
            Some("pppoed") => Ok(Leaf::PppoeDiscovery),
            Some("pppoes") => Ok(Leaf::PppoeSession(self.optional_number(0xffff)?)),
            Some(_) => Ok(Leaf::Geneve(self.optional_number(0xff_ffff)?)),
            None => self.words(None).map(Leaf::Words),
        }
    }

    /// Reads qualifiers and the identifiers behind them.
    fn qualified(&mut self, protocol: Option<Protocol>) -> Parsed<Unit> {
        let direction = self.direction()?;
        let kind = match self.next_word() {
            Some("host") => Some(Kind::Host),
            Some("net") => Some(Kind::Net),
            Some("port") => Some(Kind::Port),
            Some("portrange") => Some(Kind::PortRange),
            Some("proto") if direction.is_none() => Some(Kind::Proto),
            Some("protochain") if direction.is_none() => Some(Kind::ProtoChain),
            Some("gateway") if direction.is_none() => Some(Kind::Gateway),
            _ => None,
        };
        self.at += usize::from(kind.is_some());
        let qualifiers = Some(Qualifiers {
            protocol,
            direction: direction.unwrap_or(Direction::Either),
            kind: kind.unwrap_or(Kind::Host),
        });
        let unit = self.unit(qualifiers)?;
        self.identifiers(unit, qualifiers).map(Unit::Term)
    }

    fn direction(&mut self) -> Parsed<Option<Direction>> {
        if let Some(word) = self.takes_one(WLAN_ADDRESSES) {
            return Ok(Some(Direction::Wlan(word)));
        }
        let (other, direction) = match self.takes_one(&["src", "dst"]) {
            None => return Ok(None),
            Some("src") => ("dst", Direction::Source),
            Some(_) => ("src", Direction::Destination),
        };
        let direction = match self.takes_one(&["and", "or"]) {
            None => return Ok(Some(direction)),
            Some("and") => Direction::Both,
            Some(_) => Direction::Either,
        };
        self.expect(other, "not the other direction")?;
        Ok(Some(direction))
    }

    /// Reads a primitive that is kept word for word.
    fn words(&mut self, protocol: Option<Protocol>) -> Parsed<Vec<String>> {
        let mut words: Vec<String> = protocol.map(|p| p.name.to_owned()).into_iter().collect();
        let Some(word) = self.next_word() else { return self.fail("not a primitive") };
        self.at += 1;
        words.push(word.to_owned());
        match word {
            "multicast" | "inbound" | "outbound" | "lane" | "metac" | "bcc" | "oam" | "oamf4"
            | "oamf4ec" | "oamf4sc" | "sc" | "ilmic" | "connectmsg" | "metaconnect" | "fisu"
            | "lssu" | "lsu" | "msu" | "hfisu" | "hlssu" | "hmsu" => {}
            "less" | "greater" | "ifindex" | "rnr" | "rulenum" | "srnr" | "subrulenum" => {
                words.push(self.number()?.to_string());
            }
            "on" | "ifname" | "rset" | "ruleset" | "reason" | "action" | "subtype" | "dir"
            | "direction" => words.push(self.name_or_number()?),
            "type" => {
                words.push(self.name_or_number()?);
                if self.takes("subtype") {
                    words.extend(["subtype".to_owned(), self.name_or_number()?]);
                }
            }
            "llc" => match self.peek() {
                Some(Token::Name(_)) => words.push(self.name_or_number()?),
                _ => words.extend(self.takes_one(&["rnr", "rulenum"]).map(str::to_owned)),
            },
            "byte" => {
                words.push(self.number()?.to_string());
                match self.takes_one(&["&", "|", "<", ">", "="]) {
                    Some(operator) => words.push(operator.to_owned()),
                    None => return self.fail("not an operator of 'byte'"),
                }
                words.push(self.number()?.to_string());
            }
            "vpi" | "vci" | "sio" | "opc" | "dpc" | "sls" | "hsio" | "hopc" | "hdpc" | "hsls" => {
                words.extend(self.takes_one(COMPARISONS).map(str::to_owned));
                words.push(self.number()?.to_string());
            }
            _ => return self.refuse("not a primitive"),
        }
        Ok(words)
    }

    fn name_or_number(&mut self) -> Parsed<String> {
        match self.next()? {
            Token::Name(text) => Ok(escaped(text)),
            Token::Number(number) => Ok(number.to_string()),
            _ => self.refuse("neither a name nor a number"),
        }
    }

    /// Reads a number up to `greatest`, which may stand in parentheses, or nothing. libpcap refuses
    /// a greater one, too.
    fn optional_number(&mut self, greatest: u32) -> Parsed<Option<u32>> {
        let mut open = 0;
        while self.takes("(") {
            open += 1;
        }
        if open == 0 && !matches!(self.peek(), Some(Token::Number(_))) {
            return Ok(None);
        }
        let number = self.number()?;
        if number > greatest {
            return self.refuse("there is no such number");
        }
        for _ in 0..open {
            self.expect(")", "not in these parentheses")?;
        }
        Ok(Some(number))
    }
}

const WLAN_ADDRESSES: &[&str] = &[
    "ra", "ta", "addr1", "addr2", "addr3", "addr4", "address1", "address2", "address3", "address4",
];

fn is_qualifier(word: &str) -> bool {
    const OTHERS: &[&str] =
        &["src", "dst", "host", "net", "port", "portrange", "proto", "protochain", "gateway"];
    OTHERS.contains(&word) || WLAN_ADDRESSES.contains(&word)
}

/// Tokens.
impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| *token)
    }

    fn next_word(&self) -> Option<&'static str> {
        match self.peek() {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    pub(super) fn next(&mut self) -> Parsed<Token<'a>> {
        let Some(token) = self.peek() else { return self.fail("it ends too soon") };
        self.at += 1;
        Ok(token)
    }

    pub(super) fn takes(&mut self, word: &'static str) -> bool {
        self.takes_one(&[word]).is_some()
    }

    /// Takes one of `words`, if it comes next.
    fn takes_one(&mut self, words: &[&str]) -> Option<&'static str> {
        let word = self.next_word().filter(|word| words.contains(word))?;
        self.at += 1;
        Some(word)
    }

    fn expect(&mut self, word: &'static str, what: &'static str) -> Parsed<()> {
        if self.takes(word) { Ok(()) } else { self.fail(what) }
    }

    pub(super) fn number(&mut self) -> Parsed<u32> {
        match self.next()? {
            Token::Number(number) => Ok(number),
            _ => self.refuse("not a number"),
        }
    }

    /// Fails because the next token is not understood.
    pub(super) fn fail<T>(&self, what: &'static str) -> Parsed<T> {
        let at = self.tokens.get(self.at).map_or(self.end, |(_, at)| *at);
        Err(NotUnderstood { at, what })
    }

    /// Fails because the token that was read last is not understood.
    pub(super) fn refuse<T>(&self, what: &'static str) -> Parsed<T> {
        Err(NotUnderstood { at: self.tokens[self.at - 1].1, what })
    }
}
