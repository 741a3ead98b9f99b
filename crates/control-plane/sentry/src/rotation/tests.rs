mod simulation;

use outrigger_identity::pem;
use time::ext::NumericalDuration;

use super::*;
use crate::x509;

const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);

fn rotation(mode: RotationMode, terms: Terms) -> Rotation {
    Rotation {
        mode,
        terms,
        sentry: "spiffe://localhost/ns/default/dapr-sentry".parse().unwrap(),
        skew: 15.minutes(),
    }
}

fn start() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap()
}

/// A CA that sentry makes at that time, with its record.
fn made(rotation: &Rotation, now: OffsetDateTime) -> Contents {
    let pem = x509::generate(&rotation.sentry, rotation.skew, now).unwrap();
    let mut contents = Contents::default();
    contents.set(File::Rotation, Rotation::begin(&pem.issuer));
    contents.set(File::Root, pem.root);
    contents.set(File::Issuer, pem.issuer);
    contents.set(File::IssuerKey, pem.key);
    contents
}

fn usual(mode: RotationMode) -> Rotation {
    rotation(mode, Terms::new(HOUR * 24, HOUR / 4))
}

fn roots(contents: &Contents) -> usize {
    pem::parse_certificates(contents.get(File::Root).unwrap())
        .unwrap()
        .len()
}

fn due(advanced: &Advanced) -> OffsetDateTime {
    match advanced.status {
        Status::On { next: (_, due), .. } => due,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_ca_of_a_year_is_announced_switched_and_retired_in_its_last_third() {
    let rotation = usual(RotationMode::Own);
    let mut contents = made(&rotation, start());
    let (before, mut now) = (contents.clone(), start());
    let mut seen = Vec::new();
    for _ in 0..6 {
        let advanced = rotation.advance(&mut contents, now, true).unwrap();
        if let Some(step) = advanced.step {
            seen.push((step, (now - start()).whole_days(), roots(&contents)));
        }
        now = now.max(due(&advanced));
    }
    // A third of the year, and of the tolerance it begins with, is left at the first.
    assert_eq!(
        seen,
        [
            (RotationStep::Announce, 243, 2),
            (RotationStep::Confirm, 243, 2),
            (RotationStep::Switch, 304, 2),
            (RotationStep::Confirm, 304, 2),
            (RotationStep::Retire, 363, 1),
        ]
    );
    for file in [File::Root, File::Issuer, File::IssuerKey] {
        assert_ne!(contents.get(file), before.get(file), "{file:?}");
    }
    let record = String::from_utf8(contents.get(File::Rotation).unwrap().to_vec()).unwrap();
    assert!(
        !record.contains("KEY") && !record.contains("CERTIFICATE"),
        "{record}"
    );
    // The one that took over was made when it was announced.
    assert_eq!((now - start()).whole_days(), 243 + 243);
}

#[test]
fn nothing_is_due_before_what_it_waits_for_whatever_the_lifetimes() {
    for ttl in [1, 24, 24 * 7, 24 * 22] {
        for days in [1, 30, 365, 3650] {
            let terms = Terms::new(HOUR * ttl, HOUR / 4);
            let life = Life {
                from: start(),
                until: start() + days.days(),
            };
            if !terms.suits(life) {
                assert!(terms.step * LIFE_STEPS > days.days());
                continue;
            }
            let (step, announced) = terms.next(Phase::Normal, life);
            assert_eq!(step, RotationStep::Announce);
            assert!(announced > life.from && life.until - announced >= terms.step * LEAD_STEPS);
            let (_, switched) = terms.next(
                Phase::Announced {
                    since: Some(announced),
                },
                life,
            );
            assert!(switched - announced >= terms.step * OVERLAP_STEPS);
            let (_, retired) = terms.next(
                Phase::Switched {
                    since: Some(switched),
                },
                life,
            );
            assert!(retired - switched >= terms.step * OVERLAP_STEPS && retired < life.until);
            let (_, again) = terms.next(
                Phase::Normal,
                Life {
                    from: announced,
                    until: announced + days.days(),
                },
            );
            assert!(again > retired, "{ttl} h, {days} days");
        }
    }
}

#[test]
fn a_late_start_keeps_the_overlaps_as_long_as_they_protect_anybody() {
    let (terms, life) = (
        Terms::new(HOUR * 24, HOUR),
        Life {
            from: start() - 365.days(),
            until: start(),
        },
    );
    let next = |phase| terms.next(phase, life).1;
    let since = |days: i64| Some(start() - days.days());
    assert_eq!(
        next(Phase::Announced { since: since(3) }),
        start() - 3.days() + terms.step * 2
    );
    assert_eq!(
        next(Phase::Announced { since: since(1) }),
        start(),
        "it has expired by then"
    );
    assert_eq!(next(Phase::Announced { since: since(-1) }), start() + 1.days());
    assert_eq!(
        next(Phase::Switched { since: since(0) }),
        start() + terms.step * 2
    );
}

#[test]
fn a_ca_that_others_made_is_left_alone() {
    let rotation = usual(RotationMode::Own);
    let late = start() + 360.days();
    let mut theirs = made(&rotation, start());
    theirs.remove(File::Rotation);
    for record in [None, Some("broken"), Some("{\"made\": \"00\"}")] {
        if let Some(record) = record {
            theirs.set(File::Rotation, record.into());
        }
        let before = theirs.clone();
        let advanced = rotation.advance(&mut theirs, late, true).unwrap();
        assert_eq!(
            (advanced.status, advanced.step),
            (Status::Foreign, None),
            "{record:?}"
        );
        assert!(advanced.changed.is_empty() && theirs == before);
    }
    // Unless it is asked for, and looks as one that a sentry makes.
    let adopts = usual(RotationMode::Adopt);
    let advanced = adopts.advance(&mut theirs.clone(), late, true).unwrap();
    assert_eq!(advanced.step, Some(RotationStep::Announce));
    let stranger = Rotation {
        sentry: "spiffe://localhost/ns/other/dapr-sentry".parse().unwrap(),
        ..adopts
    };
    let advanced = stranger.advance(&mut theirs, late, true).unwrap();
    assert_eq!((advanced.status, advanced.step), (Status::Foreign, None));
}

#[test]
fn somebody_elses_ca_ends_a_rotation_that_has_begun() {
    let rotation = usual(RotationMode::Own);
    let mut contents = made(&rotation, start());
    let late = start() + 300.days();
    let advanced = rotation.advance(&mut contents, late, false).unwrap();
    assert_eq!(advanced.step, Some(RotationStep::Announce));
    let other = made(&rotation, start());
    for file in [File::Root, File::Issuer, File::IssuerKey] {
        contents.set(file, other.get(file).unwrap().to_vec());
    }
    let before = contents.clone();
    let advanced = rotation.advance(&mut contents, late + 90.days(), true).unwrap();
    assert_eq!((advanced.status, advanced.step), (Status::Foreign, None));
    assert_eq!(contents, before);
}

#[test]
fn roots_of_ones_own_stay_beside_those_that_rotate() {
    let rotation = usual(RotationMode::Own);
    let mut contents = made(&rotation, start());
    let partner = made(&rotation, start());
    let both = [
        contents.get(File::Root).unwrap(),
        partner.get(File::Root).unwrap(),
    ]
    .concat();
    contents.set(File::Root, both);
    let mut now = start();
    let mut most = 0;
    for _ in 0..6 {
        let advanced = rotation.advance(&mut contents, now, true).unwrap();
        most = most.max(roots(&contents));
        now = now.max(due(&advanced));
    }
    assert_eq!((most, roots(&contents)), (3, 2));
    let partner = pem::parse_certificates(partner.get(File::Root).unwrap()).unwrap();
    let kept = pem::parse_certificates(contents.get(File::Root).unwrap()).unwrap();
    assert!(kept.contains(&partner[0]));
}

#[test]
fn a_root_that_somebody_took_out_is_announced_again_for_the_whole_overlap() {
    let rotation = usual(RotationMode::Own);
    let mut contents = made(&rotation, start());
    let old = contents.get(File::Root).unwrap().to_vec();
    let announced = start() + 300.days();
    for _ in 0..2 {
        rotation.advance(&mut contents, announced, true).unwrap();
    }
    contents.set(File::Root, old);
    let late = start() + 350.days();
    let repaired = rotation.advance(&mut contents, late, true).unwrap();
    assert_eq!((repaired.step, roots(&contents)), (None, 2));
    assert_eq!(repaired.changed, [File::Rotation, File::Root]);
    let confirmed = rotation.advance(&mut contents, late, true).unwrap();
    assert_eq!(confirmed.step, Some(RotationStep::Confirm));
    assert!(due(&confirmed) >= late + rotation.terms.step * OVERLAP_STEPS);
}

#[test]
fn nothing_is_confirmed_before_it_is_in_use_everywhere() {
    let rotation = usual(RotationMode::Own);
    let mut contents = made(&rotation, start());
    let now = start() + 300.days();
    rotation.advance(&mut contents, now, false).unwrap();
    let advanced = rotation.advance(&mut contents, now + 50.days(), false).unwrap();
    assert_eq!(advanced.step, None);
    assert!(advanced.changed.is_empty());
}

#[test]
fn turned_off_it_only_finishes_what_a_crash_interrupted() {
    let own = usual(RotationMode::Own);
    let off = usual(RotationMode::Off);
    let mut contents = made(&own, start());
    let mut now = start() + 300.days();
    let advanced = off.advance(&mut contents, now, true).unwrap();
    assert_eq!((advanced.status, advanced.step), (Status::Off, None));
    for _ in 0..2 {
        own.advance(&mut contents, now, true).unwrap();
    }
    let (issuer, key) = (
        contents.get(File::Issuer).unwrap().to_vec(),
        contents.get(File::IssuerKey).unwrap().to_vec(),
    );
    now += 60.days();
    assert_eq!(
        own.advance(&mut contents, now, true).unwrap().step,
        Some(RotationStep::Switch)
    );
    let switched = contents.clone();
    contents.set(File::Issuer, issuer);
    contents.set(File::IssuerKey, key);
    let advanced = off.advance(&mut contents, now, false).unwrap();
    assert_eq!(advanced.changed, [File::IssuerKey, File::Issuer]);
    assert_eq!(contents, switched);
}

#[test]
fn turned_off_it_leaves_an_issuer_alone_that_somebody_put_back() {
    let (own, off) = (usual(RotationMode::Own), usual(RotationMode::Off));
    let mut contents = made(&own, start());
    let old = contents.clone();
    let mut now = start();
    // Announced, confirmed, switched; what comes next is confirmed in the other mode.
    for _ in 0..4 {
        let advanced = own.advance(&mut contents, now, true).unwrap();
        now = now.max(due(&advanced));
    }
    let advanced = off.advance(&mut contents, now, true).unwrap();
    assert_eq!(
        (advanced.step, advanced.left),
        (Some(RotationStep::Confirm), false)
    );
    let advanced = off.advance(&mut contents, now, true).unwrap();
    assert!(advanced.step.is_none() && advanced.changed.is_empty() && !advanced.left);
    for file in [File::Root, File::Issuer, File::IssuerKey] {
        contents.set(file, old.get(file).unwrap().to_vec());
    }
    let before = contents.clone();
    let advanced = off.advance(&mut contents, now, false).unwrap();
    assert!(advanced.changed.is_empty() && contents == before);
    assert!(advanced.left, "it is warned of");
    // Written over, the record brings nothing back in any mode.
    contents.set(File::Rotation, b"{}".to_vec());
    let advanced = own.advance(&mut contents, now, false).unwrap();
    assert_eq!((advanced.status, advanced.step), (Status::Foreign, None));
    assert!(advanced.changed.is_empty());
}

#[test]
fn the_root_of_an_issuer_that_was_put_back_is_not_dropped() {
    let rotation = usual(RotationMode::Own);
    let mut contents = made(&rotation, start());
    let old = contents.clone();
    let mut now = start();
    // Up to the confirmation of the switch: what is due then is the end of the old root.
    for _ in 0..5 {
        let advanced = rotation.advance(&mut contents, now, true).unwrap();
        now = now.max(due(&advanced));
    }
    let switched = contents.clone();
    for file in [File::Issuer, File::IssuerKey] {
        contents.set(file, old.get(file).unwrap().to_vec());
    }
    let repaired = rotation.advance(&mut contents, now, true).unwrap();
    assert_eq!((repaired.step, roots(&contents)), (None, 2));
    assert_eq!(contents.get(File::Issuer), switched.get(File::Issuer));
}

#[test]
fn a_ca_that_expired_makes_way_for_the_announced_one_or_else_for_a_new_one() {
    let rotation = usual(RotationMode::Own);
    let first = made(&rotation, start());
    let mut announced = first.clone();
    rotation
        .advance(&mut announced, start() + 300.days(), true)
        .unwrap();
    let next = pem::parse_certificates(announced.get(File::Root).unwrap()).unwrap();
    for (before, now) in [
        (&first, start() + 400.days()),
        (&announced, start() + 400.days()),
        (&announced, start() + 800.days()),
    ] {
        let mut contents = before.clone();
        let advanced = rotation.advance(&mut contents, now, false).unwrap();
        assert_eq!(advanced.step, Some(RotationStep::Renew));
        let order = [File::Rotation, File::Root, File::IssuerKey, File::Issuer];
        assert_eq!(advanced.changed, order);
        let life = record::chain_life(
            contents.get(File::Root).unwrap(),
            contents.get(File::Issuer).unwrap(),
        );
        assert!(life.unwrap().until > now);
        let kept = pem::parse_certificates(contents.get(File::Root).unwrap()).unwrap();
        let takes_announced = before == &announced && now < start() + 500.days();
        assert_eq!(next[1] == kept[1], takes_announced);
        assert_eq!(kept.len(), 2);
        // A crash after the first file loses nothing.
        let mut half = before.clone();
        half.set(File::Rotation, contents.get(File::Rotation).unwrap().to_vec());
        rotation.advance(&mut half, now, false).unwrap();
        assert_eq!(half.get(File::Issuer), contents.get(File::Issuer));
        let confirmed = rotation.advance(&mut contents, now, true).unwrap();
        let later = due(&confirmed);
        assert_eq!((later - now).whole_days(), 2);
        let retired = rotation.advance(&mut contents, later, true).unwrap();
        assert_eq!((retired.step, roots(&contents)), (Some(RotationStep::Retire), 1));
        // Stopped again for longer than that one lives.
        let again = rotation.advance(&mut contents, now + 900.days(), false).unwrap();
        assert_eq!(again.step, Some(RotationStep::Renew));
    }
    let mut theirs = first;
    theirs.remove(File::Rotation);
    let foreign = rotation
        .advance(&mut theirs, start() + 400.days(), false)
        .unwrap();
    assert_eq!((foreign.step, foreign.changed.len()), (None, 0));
}

#[test]
fn certificates_that_live_too_long_are_said_to() {
    let long = rotation(RotationMode::Own, Terms::new(HOUR * 24 * 30, HOUR));
    let mut contents = made(&long, start());
    let advanced = long.advance(&mut contents, start() + 364.days(), true).unwrap();
    assert_eq!((advanced.status, advanced.step), (Status::LifetimesTooLong, None));
    assert!(advanced.status.to_string().contains("workloadCertTTL"));
}

#[test]
fn the_status_names_what_comes_next_and_when() {
    let rotation = usual(RotationMode::Own);
    let mut contents = made(&rotation, start());
    let mut now = start();
    let mut said = Vec::new();
    for _ in 0..5 {
        let advanced = rotation.advance(&mut contents, now, true).unwrap();
        said.push((
            advanced.status.number(),
            advanced.status.due() > 0,
            advanced.status.to_string(),
        ));
        now = now.max(due(&advanced));
    }
    let starts = [
        (1, "normal: the next CA is announced at 20"),
        (2, "announced: the new root is being distributed"),
        (
            2,
            "announced: both roots are trusted, the new issuer signs from 20",
        ),
        (3, "switched: the new issuer is being put in place"),
        (
            3,
            "switched: the new issuer signs, the old root is trusted until 20",
        ),
    ];
    for ((number, _, text), (wanted, start)) in said.iter().zip(starts) {
        assert!(*number == wanted && text.starts_with(start), "{text}");
    }
    assert_eq!(Status::Off.number() + Status::Foreign.due(), 0);
}
