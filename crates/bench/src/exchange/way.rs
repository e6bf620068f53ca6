//! The ways of rows that are compared.

use overspill_exchange::Levels;

/// One way of rows.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    pub levels: Levels,
    pub is_compressed: bool,
    /// Whether rows begin and end in GPU memory.
    pub is_on_gpu: bool,
}

/// The ways that are measured, with a GPU or without.
pub fn ways(has_gpu: bool) -> Vec<Way> {
    let on_cpu = Levels::ALL
        .into_iter()
        .flat_map(|levels| [false, true].map(|is_compressed| Way { levels, is_compressed, is_on_gpu: false }));
    let on_gpu = Levels::ALL.map(|levels| Way { levels, is_compressed: false, is_on_gpu: true });
    on_cpu.chain(on_gpu.into_iter().filter(|_| has_gpu)).collect()
}

impl Way {
    pub fn name(self) -> String {
        let levels = if self.levels == Levels::One { "one level" } else { "two levels" };
        let place = if self.is_on_gpu { ", GPU" } else { "" };
        format!("{levels}, {}{place}", if self.is_compressed { "compressed" } else { "plain" })
    }
}
