//! Which member of a group of schedulers looks after which job.

/// A member's place in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    index: u64,
    total: u64,
}

impl Shard {
    /// A group of one.
    pub const ALL: Self = Self { index: 0, total: 1 };

    /// The place of `member` among `members`, whatever their order; `None` if it is not one of them.
    pub fn of<'a>(member: &str, members: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let (mut index, mut total, mut found) = (0, 0, false);
        for other in members {
            total += 1;
            found |= other == member;
            // Members sort by their names, byte by byte.
            index += u64::from(other < member);
        }
        found.then_some(Self { index, total })
    }

    /// Whether it looks after the jobs of a partition, a random number that each job gets when it is created.
    pub fn owns(&self, partition: u64) -> bool {
        partition % self.total == self.index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assigns_each_job_to_one_member() {
        let members = ["c", "a", "b"];
        let shards = members.map(|member| Shard::of(member, members).unwrap());
        for partition in [0, 1, 2, 3, 99, u64::MAX] {
            let owners = shards.iter().filter(|shard| shard.owns(partition)).count();
            assert_eq!(owners, 1, "{partition}");
        }
        assert_eq!(Shard::of("d", members), None);
        assert_eq!(Shard::of("a", ["a"]), Some(Shard::ALL));
    }
}
