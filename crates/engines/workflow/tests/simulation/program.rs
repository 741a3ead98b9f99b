//! A random workflow: a list of steps, and the clients' actions.

use rand::RngExt;
use rand::rngs::StdRng;

use super::replay::{Context, End};

/// A step of a workflow. Its result is appended to the output.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// An activity; multiples of seven fail.
    Activity(u32),
    /// Parallel activities.
    Fan(u32),
    /// A timer, milliseconds.
    Timer(i64),
    /// An event by number; the client sends every event that the program waits for.
    Event(u32),
    /// An event whose wait has a limit that never expires.
    LimitedEvent(u32),
    /// A child that runs these steps.
    Child(Vec<Step>),
    /// Parallel children.
    Children(u32),
    /// An activity of another app.
    Remote(u32),
    /// An activity that the workflow retries up to three times, with a delay, as SDKs do.
    Retried(u32),
    /// Two parallel children that run these steps, one in this app and one in another.
    Pair(Vec<Step>),
    /// Leaves a child behind and continues as new; the number then belongs to another child. The child gets a
    /// new id or, if the number is divisible by three, the same id. Odd numbers delay.
    Desert(u32),
    /// Waits for an event that never arrives: only a termination ends it.
    Halt,
    /// The next steps run in another execution, with the output so far as input.
    ContinueAsNew,
    /// Continues as new this many times in a row, more than a step allows.
    Loop(u32),
    /// Fails the workflow.
    Fail,
}

/// A client's action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Raises the event of this number.
    Event(u32),
    /// Suspends the workflow.
    Suspend(u32),
    Resume(u32),
    /// Terminates the workflow and its children at any moment.
    Terminate(u32),
    /// The same, once nothing is in progress.
    TerminateAtRest,
}

impl Sent {
    /// Whether it is sent at once, whatever else is pending.
    pub(crate) fn is_early(self) -> bool {
        match self {
            Self::Event(number) | Self::Suspend(number) | Self::Resume(number) | Self::Terminate(number) => {
                number.is_multiple_of(3)
            }
            Self::TerminateAtRest => false,
        }
    }
}

/// A workflow with its clients' actions.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) steps: Vec<Step>,
    /// Sent in this order.
    pub(crate) sent: Vec<Sent>,
}

impl Program {
    pub(crate) fn random(random: &mut StdRng) -> Self {
        let mut events = 0;
        let mut steps = steps(random, 0, &mut events);
        let ends = random.random_range(0..8);
        if ends == 0 {
            steps.push(halting(random, 0));
        }
        // Events that the root workflow waits for.
        let number = |step: &Step| match step {
            Step::Event(number) | Step::LimitedEvent(number) => Some(Sent::Event(*number)),
            _ => None,
        };
        let mut sent: Vec<_> = steps.iter().filter_map(number).collect();
        for _ in 0..random.random_range(0..4_u32).saturating_sub(1) {
            let (first, second) = (random.random_range(0..9), random.random_range(0..9));
            let at = random.random_range(0..=sent.len());
            sent.insert(at, Sent::Suspend(first));
            let at = random.random_range(at + 1..=sent.len());
            sent.insert(at, Sent::Resume(second));
        }
        // A nested suspension is covered: the last resume ends it.
        if sent.iter().any(|sent| matches!(sent, Sent::Suspend(_))) {
            sent.push(Sent::Resume(1));
        }
        match ends {
            0 => sent.push(Sent::TerminateAtRest),
            1 => {
                let at = random.random_range(0..=sent.len());
                sent.insert(at, Sent::Terminate(random.random_range(0..9)));
            }
            _ => {}
        }
        Self { steps, sent }
    }

    /// Whether a termination at a random moment ends it.
    pub(crate) fn ends_anytime(&self) -> bool {
        self.sent.iter().any(|sent| matches!(sent, Sent::Terminate(_)))
    }

    /// The same program without terminations.
    pub(crate) fn unended(&self) -> Self {
        let mut program = self.clone();
        program.sent.retain(|sent| !matches!(sent, Sent::Terminate(_)));
        program
    }
}

/// A step that never ends by itself, or children that do not.
fn halting(random: &mut StdRng, depth: u32) -> Step {
    if depth == 2 || random.random_bool(0.3) {
        return Step::Halt;
    }
    let mut inner = steps(random, depth + 1, &mut 0);
    inner.push(halting(random, depth + 1));
    match random.random_bool(0.5) {
        true => Step::Pair(inner),
        false => Step::Child(inner),
    }
}

fn steps(random: &mut StdRng, depth: u32, events: &mut u32) -> Vec<Step> {
    let count = random.random_range(1..=7 - 2 * depth);
    (0..count)
        .map(|_| match random.random_range(0..25) {
            0..=4 => Step::Activity(random.random_range(0..50)),
            5 | 6 => Step::Fan(random.random_range(2..6)),
            7 | 8 => Step::Timer(random.random_range(0..3000)),
            9 | 10 if depth == 0 => {
                *events += 1;
                Step::Event(*events)
            }
            11 if depth == 0 => {
                *events += 1;
                Step::LimitedEvent(*events)
            }
            12 | 13 if depth < 2 => Step::Child(steps(random, depth + 1, events)),
            14 if depth < 2 => Step::Children(random.random_range(2..4)),
            15 => Step::Remote(random.random_range(0..50)),
            16 | 17 => Step::ContinueAsNew,
            19 | 20 => Step::Retried(random.random_range(0..50)),
            21 if depth == 0 => Step::Pair(steps(random, depth + 1, events)),
            22 | 23 if depth < 2 => Step::Desert(random.random_range(0..6)),
            18 => match random.random_range(0..3) {
                0 => Step::Fail,
                _ => Step::Loop(random.random_range(15..45)),
            },
            _ => Step::Activity(random.random_range(0..50)),
        })
        .collect()
}

/// Attempts of a retried activity.
const ATTEMPTS: u32 = 3;

/// The result of an activity. A retried activity receives its attempt number and fails the first attempts, or
/// all.
pub(crate) fn activity(input: &str) -> Result<String, String> {
    if let Some((number, attempt)) = input.split_once('@') {
        let (number, attempt): (u32, u32) = (number.parse().unwrap(), attempt.parse().unwrap());
        return match attempt < number % (ATTEMPTS + 1) {
            true => Err(format!("{number} fails in attempt {attempt}")),
            false => Ok(format!("{number} in attempt {attempt}")),
        };
    }
    let number: u32 = input.parse().unwrap();
    if number.is_multiple_of(7) {
        Err(format!("{number} fails"))
    } else {
        Ok((number * 3).to_string())
    }
}

/// Runs the steps. The input is `position|output`: where the execution starts, and the output so far.
pub(crate) fn run(steps: &[Step], context: &mut Context) -> Option<End> {
    let (position, output) = context.input.split_once('|').unwrap();
    let (position, mut output) = (position.parse::<usize>().unwrap(), output.to_owned());
    for (index, step) in steps.iter().enumerate().skip(position) {
        context.status = Some(format!("step {index}"));
        let mut wait_all = |context: &mut Context, begun: Vec<i32>| -> Option<()> {
            for id in begun {
                match context.wait(id)? {
                    Ok(result) => output.push_str(&format!(" {result}")),
                    Err(error) => output.push_str(&format!(" ({error})")),
                }
            }
            Some(())
        };
        match step {
            Step::Activity(number) => {
                let id = context.begin_activity("triple", &number.to_string());
                wait_all(context, vec![id])?;
            }
            Step::Remote(number) => {
                context.app = Some("other".to_owned());
                let id = context.begin_activity("triple", &number.to_string());
                wait_all(context, vec![id])?;
            }
            Step::Retried(number) => {
                let mut attempt = 0;
                loop {
                    let id = context.begin_activity("flaky", &format!("{number}@{attempt}"));
                    let ended = context.wait(id)?;
                    attempt += 1;
                    if ended.is_ok() || attempt == ATTEMPTS {
                        output.push_str(&format!(" {}", ended.unwrap_or_else(|error| error)));
                        break;
                    }
                    let pause = context.begin_timer(i64::from(20 << attempt), None);
                    context.wait(pause)?.unwrap();
                }
            }
            Step::Pair(_) => {
                let name = format!("{}/{index}", context.name);
                let here = context.begin_child(&name, "", "0|");
                context.app = Some("other".to_owned());
                let there = context.begin_child(&name, "", "0|");
                wait_all(context, vec![here, there])?;
            }
            Step::Desert(number) => {
                let kept = output.trim_end_matches(" leaves").trim_end_matches(" left");
                let (waits, is_same) = (number % 2 == 1, number.is_multiple_of(3));
                // Both children have the same number.
                let begin = |context: &mut Context, which: &str| {
                    let which = if is_same { "same" } else { which };
                    let id = format!("{}-{which}-{index}", context.instance);
                    let leaf = format!("{}/leaf", context.name);
                    let child = context.begin_child(&leaf, &id, &format!("0| {which}"));
                    (child, format!(" {which} 15"))
                };
                if output.ends_with(" left") {
                    if waits {
                        let pause = context.begin_timer(50, None);
                        context.wait(pause)?.unwrap();
                    }
                    let (child, expected) = begin(context, "later");
                    let found = context.wait(child)?;
                    assert_eq!(
                        found.as_ref(),
                        Ok(&expected),
                        "{} has the result of another child",
                        context.instance
                    );
                    output = format!("{kept}{expected}");
                } else if output.ends_with(" leaves") {
                    // Tasks started together with continue-as-new are not started.
                    let before = waits.then(|| context.begin_timer(1, None));
                    begin(context, "sooner");
                    let pause = before.unwrap_or_else(|| context.begin_timer(1, None));
                    context.wait(pause)?.unwrap();
                    return Some(End::ContinueAsNew(format!("{index}|{kept} left")));
                } else {
                    return Some(End::ContinueAsNew(format!("{index}|{kept} leaves")));
                }
            }
            Step::Halt => {
                context.event("never")?;
            }
            Step::Fan(width) => {
                let begun = (0..*width).map(|n| context.begin_activity("triple", &(n + 1).to_string()));
                let begun = begun.collect();
                wait_all(context, begun)?;
            }
            Step::Timer(millis) => {
                let id = context.begin_timer(*millis, None);
                context.wait(id)?.unwrap();
                output.push_str(" timer");
            }
            Step::Event(number) => {
                let event = context.event(&format!("Event{number}"))?;
                output.push_str(&format!(" {event}"));
            }
            Step::LimitedEvent(number) => {
                let name = format!("event{number}");
                // As workers do: an event that has already arrived needs no limit, and then no timer.
                let _limit = context.begin_timer(1_000_000_000, Some(&name));
                let event = context.event(&name)?;
                output.push_str(&format!(" {event}"));
            }
            Step::Child(_) => {
                let id = context.begin_child(&format!("{}/{index}", context.name), "", "0|");
                wait_all(context, vec![id])?;
            }
            Step::Children(width) => {
                let name = format!("{}/leaf", context.name);
                let begun = (0..*width).map(|_| context.begin_child(&name, "", "0|"));
                let begun = begun.collect();
                wait_all(context, begun)?;
            }
            Step::ContinueAsNew => return Some(End::ContinueAsNew(format!("{}|{output}", index + 1))),
            Step::Loop(times) => {
                let looped = output
                    .rsplit(' ')
                    .next()
                    .and_then(|last| last.strip_prefix("loop"));
                let looped = looped.and_then(|count| count.parse::<u32>().ok());
                let count = looped.map_or(0, |count| count + 1);
                if count < *times {
                    let kept = output.rsplit_once(" loop").filter(|_| looped.is_some());
                    let kept = kept.map_or(output.as_str(), |(kept, _)| kept);
                    return Some(End::ContinueAsNew(format!("{index}|{kept} loop{count}")));
                }
                output.push_str(" looped");
            }
            Step::Fail => return Some(End::Failed(format!("failed after{output}"))),
        }
    }
    Some(End::Completed(output))
}

/// The steps of a workflow by its name: `root`, `root/3`, ...; a leaf runs one activity.
pub(crate) fn steps_of(program: &Program, name: &str) -> Vec<Step> {
    let mut steps = program.steps.clone();
    for part in name.split('/').skip(1) {
        steps = match part.parse::<usize>() {
            Ok(index) => match &steps[index] {
                Step::Child(inner) | Step::Pair(inner) => inner.clone(),
                other => panic!("{other:?} is no child"),
            },
            Err(_) => vec![Step::Activity(5)],
        };
    }
    steps
}
