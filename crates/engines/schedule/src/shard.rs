//! Sharding of jobs among a group of schedulers.

/// A member's shard in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    index: u64,
    total: u64,
}

impl Shard {
    /// A group of one.
    pub const ALL: Self = Self { index: 0, total: 1 };

    /// The shard of `member` among `members`, whatever their order; `None` if it is not one of them.
    pub fn of<'a>(member: &str, members: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let (mut index, mut total, mut found) = (0, 0, false);
        for other in members {
            total += 1;
            found |= other == member;
            // Members are ordered by name, bytewise.
            index += u64::from(other < member);
        }
        found.then_some(Self { index, total })
    }

    /// The member's part of a limit of the whole group: at least 1, so that no member's jobs wait forever.
    pub fn part_of(&self, limit: usize) -> usize {
        let (index, total) = (self.index as usize, self.total as usize);
        let more = usize::from(index < limit % total);
        (limit / total + more).max(1)
    }

    /// Whether the shard owns the jobs of a partition, a random number assigned to each job on creation.
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
        let parts = |limit| shards.map(|shard| shard.part_of(limit));
        assert_eq!(parts(8), [2, 3, 3], "c, a, b");
        assert_eq!(parts(2), [1, 1, 1]);
        assert_eq!(Shard::of("d", members), None);
        assert_eq!(Shard::of("a", ["a"]), Some(Shard::ALL));
    }
}
