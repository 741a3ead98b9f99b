use std::collections::BTreeMap;

/// The position up to which everything is done, for sources whose acknowledgements are cumulative.
///
/// Positions increase (offsets, packet numbers) and may have gaps.
#[derive(Debug, Default)]
pub struct Watermark {
    /// Positions started and not passed yet, and whether they are done.
    open: BTreeMap<u64, bool>,
}

impl Watermark {
    /// Records a position before its event is offered.
    pub fn begin(&mut self, position: u64) {
        self.open.entry(position).or_insert(false);
    }

    /// The event at `position` is done. Returns the new watermark if it advanced.
    pub fn done(&mut self, position: u64) -> Option<u64> {
        *self.open.get_mut(&position)? = true;
        let mut passed = None;
        while let Some(first) = self.open.first_entry() {
            if !first.get() {
                break;
            }
            passed = Some(first.remove_entry().0);
        }
        passed
    }

    /// Number of positions started and not passed.
    pub fn open(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advances_over_contiguous_positions() {
        let mut mark = Watermark::default();
        for position in [3, 4, 7, 9] {
            mark.begin(position);
        }
        assert_eq!(mark.done(4), None, "3 is open");
        assert_eq!(mark.done(9), None);
        assert_eq!(mark.done(3), Some(4));
        assert_eq!(mark.done(7), Some(9));
        assert_eq!(mark.open(), 0);
    }

    #[test]
    fn ignores_unknown_position() {
        let mut mark = Watermark::default();
        mark.begin(1);
        assert_eq!(mark.done(2), None);
        assert_eq!(mark.done(1), Some(1));
        assert_eq!(mark.done(1), None, "told once");
    }
}
