/// Where something runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// On the CPU.
    Cpu,
    /// On a GPU.
    Gpu,
    /// On a stand-in for a GPU that runs its kernels on the CPU. It is slow, and for tests.
    Emulated,
}

impl DeviceKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Gpu, Self::Emulated];

    /// The name in settings and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Emulated => "emulated",
        }
    }
}
